"""Cuts one rank's work into forward passes: annotation -> launch on the same thread -> correlation -> work.

A pass owns what its range launched, whenever that ran: in real files all of it may run after the range has ended. One
graph launch owns all its kernels. The device copies of annotations are never used: a pass of piecewise graphs has one
piece per layer. Files without a range that names a pass go to unmarked.py. How much was explained is in the result.
Rules and their limits: docs/traces.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastverify.trace.events import Int64, TraceData
from fastverify.trace.spans import TARGET_KINDS, PassKind, SpanMeaning, parse_scope, parse_span
from fastverify.trace.unmarked import find_unmarked
from fastverify.trace.work import NO_TIME, Work, work_of

# Arbitrary: draft models of public heads have one to a few layers, targets dozens; anything between 0.1 and 0.5 works.
DRAFT_LAYER_SHARE = 0.25
# Arbitrary: a draft range is next to its target's; a few others may lie between.
MAX_RANGES_APART = 8


@dataclass(frozen=True)
class Pass:
    """One pass; `work` indexes `Work`. `host_start_ns` and `host_end_ns` bound its range, NO_TIME without one."""

    kind: PassKind
    phase: str
    batch: int | None
    rows: int | None
    name: str
    work: Int64
    host_start_ns: int
    host_end_ns: int


@dataclass(frozen=True)
class Passes:
    """All passes of one rank, by start of their work. `coverage` is the share of work time that a pass owns."""

    rule: str
    coverage: float
    program: str
    passes: tuple[Pass, ...]
    work: Work


@dataclass(frozen=True)
class _Range:
    start_ns: int
    end_ns: int
    thread: int
    name: str
    meaning: SpanMeaning


def find_passes(trace: TraceData) -> Passes:
    """Passes by annotations where the file has some, else by what repeats."""
    work = work_of(trace)
    ranges = _with_batch(_without_wrappers(_pass_ranges(trace)))
    found = [one for one in _passes_of_ranges(trace, work, ranges) if len(one.work)]
    rule = "annotation to CPU operator" if work.is_cpu else "annotation to launch to kernel"
    program = ranges[0].meaning.program if ranges else ""
    if not _has_kinds(found):
        unmarked_rule, pieces = find_unmarked(work)
        unmarked = [Pass(one.kind, one.phase, None, None, "", one.work, NO_TIME, NO_TIME) for one in pieces]
        if _has_kinds(unmarked):
            rule, program, found = unmarked_rule, "", unmarked
        elif not found:
            rule = "none: no annotation names a pass and nothing repeats"
    found = sorted(_drafts_by_layers(work, found), key=lambda one: int(work.start_ns[one.work[0]]))
    return Passes(rule, _coverage(work, found), program, tuple(found), work)


def _has_kinds(passes: list[Pass]) -> bool:
    """Whether any pass is more than a range without a meaning."""
    return any(one.kind is not PassKind.OTHER for one in passes)


def _pass_ranges(trace: TraceData) -> list[_Range]:
    annotations = trace.annotations
    meanings = {int(i): parse_span(trace.names[i]) for i in np.unique(annotations.name)}
    ranges = []
    for i in np.flatnonzero(~annotations.on_device).tolist():
        meaning = meanings[int(annotations.name[i])]
        if meaning is not None:
            start_ns, name = int(annotations.ts_ns[i]), trace.names[annotations.name[i]]
            end_ns = start_ns + int(annotations.dur_ns[i])
            ranges.append(_Range(start_ns, end_ns, int(annotations.thread[i]), name, meaning))
    return ranges


def _without_wrappers(ranges: list[_Range]) -> list[_Range]:
    """Of nested ranges keep the one that says more: a draft range over what it wraps, else the inner one.

    SGLang runs the draft model's prefill as `step[EXTEND]` inside `draft_extend`; an `execute_*` or `ProfilerStep`
    around a `step[...]` also holds the scheduler's copies.
    """
    ranges = sorted(ranges, key=lambda one: (one.thread, one.start_ns, -one.end_ns))
    is_kept = [True] * len(ranges)
    stack: list[int] = []
    for i, one in enumerate(ranges):
        while stack and (ranges[stack[-1]].thread != one.thread or ranges[stack[-1]].end_ns <= one.start_ns):
            stack.pop()
        if any(ranges[outer].meaning.kind is PassKind.DRAFT for outer in stack):
            is_kept[i] = False
            continue
        for outer in stack:
            is_kept[outer] = False
        stack.append(i)
    return [one for one, keep in zip(ranges, is_kept, strict=True) if keep]


def _with_batch(ranges: list[_Range]) -> list[_Range]:
    """SGLang's `draft` and `draft_extend` do not name their batch: it is that of the target range they belong to."""
    filled = list(ranges)
    for i, one in enumerate(ranges):
        if one.meaning.kind is PassKind.DRAFT and one.meaning.batch is None:
            behind = one.meaning.phase == "draft"
            near = ranges[i + 1 : i + 1 + MAX_RANGES_APART], ranges[max(i - MAX_RANGES_APART, 0) : i][::-1]
            around = near[0] if behind else near[1]
            targets = (other for other in around if other.meaning.kind in TARGET_KINDS and other.thread == one.thread)
            target = next(targets, None)
            if target is not None:
                filled[i] = replace(one, meaning=replace(one.meaning, batch=target.meaning.batch))
    return filled


def _passes_of_ranges(trace: TraceData, work: Work, ranges: list[_Range]) -> list[Pass]:
    passes = []
    for thread in sorted({one.thread for one in ranges}):
        on_thread = [one for one in ranges if one.thread == thread]
        # A step of a training loop is the whole process: autograd launches from threads of its own.
        is_step = all(one.meaning.kind is PassKind.OTHER for one in on_thread)
        owned = work.launched() if is_step else work.launched_on(thread)
        launch_ns = work.launch_ns[owned]
        for one, following in zip(on_thread, [*on_thread[1:], None], strict=True):
            first, last = np.searchsorted(launch_ns, [one.start_ns, one.end_ns])
            own = owned[first:last]
            if not one.meaning.has_tail:
                passes.append(_pass(one, own, one.end_ns))
                continue
            tail_end_ns = following.start_ns if following else _MAX_NS
            tail = owned[last : np.searchsorted(launch_ns, tail_end_ns)]
            rest, draft = _split_tail(trace, work, tail, thread, one.end_ns, tail_end_ns)
            passes.append(_pass(one, np.concatenate((own, rest)), one.end_ns))
            if len(draft):
                drafting = SpanMeaning(PassKind.DRAFT, one.meaning.program, one.meaning.batch, phase="draft")
                starts = int(work.launch_ns[draft].min())
                passes.append(_pass(replace(one, meaning=drafting, start_ns=starts), draft, tail_end_ns))
    return passes


_MAX_NS = np.iinfo(np.int64).max


def _pass(one: _Range, work: Int64, host_end_ns: int) -> Pass:
    meaning = one.meaning
    name = one.name if meaning.kind is not PassKind.DRAFT or not meaning.has_tail else meaning.phase
    return Pass(
        meaning.kind, meaning.phase, meaning.batch, meaning.rows, name, np.sort(work), one.start_ns, host_end_ns
    )


def _split_tail(
    trace: TraceData, work: Work, tail: Int64, thread: int, start_ns: int, end_ns: int
) -> tuple[Int64, Int64]:
    """Work between two ranges of vLLM: the target's logits and sampling, then drafting.

    vLLM's scopes say it where they are switched on; what follows the draft scope is bookkeeping and in no pass. Else
    drafting begins behind the last sampling kernel (or else the last collective) before the first all-reduce, attention
    kernel or graph; without one of these nothing was drafted.
    """
    scope = _draft_scope(trace, thread, start_ns, end_ns)
    if scope is not None:
        first, last = np.searchsorted(work.launch_ns[tail], scope)
        return tail[:first], tail[first:last]
    forward = work.is_graph[tail] | work.is_all_reduce[tail] | work.is_attention[tail]
    if not forward.any():
        return tail, tail[:0]
    cut = int(np.argmax(forward))
    before = tail[:cut]
    for ends_the_target in (work.is_sampling[before], work.is_collective[before]):
        if ends_the_target.any():
            cut = int(np.flatnonzero(ends_the_target)[-1]) + 1
            break
    return tail[:cut], tail[cut:]


def _draft_scope(trace: TraceData, thread: int, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """vLLM's `draft` scope that opens in a window of a thread; an empty one at the window's end where others do."""
    annotations = trace.annotations
    first, last = np.searchsorted(annotations.ts_ns, [start_ns, end_ns])
    on_thread = [i for i in range(first, last) if annotations.thread[i] == thread]
    scopes = [(parse_scope(trace.names[annotations.name[i]]), i) for i in on_thread]
    for scope, i in scopes:
        if scope == "draft":
            return int(annotations.ts_ns[i]), int(annotations.ts_ns[i] + annotations.dur_ns[i])
    return (end_ns, end_ns) if any(scope for scope, _ in scopes) else None


def _drafts_by_layers(work: Work, passes: list[Pass]) -> list[Pass]:
    """Draft passes that carry the target's name: those with far fewer attention kernels than others of that name."""
    layers = [int(work.is_attention[one.work].sum()) for one in passes]
    most: dict[str, int] = {}
    for one, count in zip(passes, layers, strict=True):
        if one.name and one.kind in TARGET_KINDS:
            most[one.name] = max(most.get(one.name, 0), count)
    return [
        replace(one, kind=PassKind.DRAFT, phase="draft")
        if one.kind in TARGET_KINDS and 0 < count <= most.get(one.name, 0) * DRAFT_LAYER_SHARE
        else one
        for one, count in zip(passes, layers, strict=True)
    ]


def _coverage(work: Work, passes: list[Pass]) -> float:
    total = int((work.end_ns - work.start_ns).sum())
    owned = np.zeros(len(work), dtype=bool)
    for one in passes:
        owned[one.work] = True
    return float((work.end_ns - work.start_ns)[owned].sum() / total) if total else 0.0
