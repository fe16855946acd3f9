"""From passes to the answer: totals of the file, one row per kind of pass, health, histogram of message sizes.

Medians, not means: the first pass of a recording carries the start of the profiler. Passes are grouped by kind, phase,
batch and token rows. Several ranks are joined by ranks.py. Definitions: docs/traces.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fastverify.trace.collectives import ModelSizes, Recorded, collective_rows, recorded_collectives
from fastverify.trace.costs import Cost, Timeline, cost_of
from fastverify.trace.events import TraceData
from fastverify.trace.kinds import CollectiveOp
from fastverify.trace.passes import Pass, Passes, find_passes
from fastverify.trace.profile import HealthRow, PassRow, Profile, RankRow, SizeRow, Totals
from fastverify.trace.ranks import match_ranks
from fastverify.trace.verdict import headline
from fastverify.trace.work import Work
from fastverify.units import ns_to_us

# Arbitrary: below this share of the wall span a late launch is not what the pass is slow from.
LAUNCH_BOUND_SHARE = 0.2
# Arbitrary: below this share of explained kernel time the pass rows are not the whole story, and health says so.
MIN_COVERAGE = 0.9


@dataclass(frozen=True)
class Analysis:
    """A profile and what it was computed from, one entry of `passes` per rank of the profile."""

    profile: Profile
    passes: tuple[Passes, ...]


def profile_of(traces: Sequence[TraceData], model: ModelSizes | None = None) -> Profile:
    """Profile of all ranks: totals and passes of the lowest one, matched with the others."""
    return analyse(traces, model).profile


def analyse(traces: Sequence[TraceData], model: ModelSizes | None = None) -> Analysis:
    """As `profile_of`, with the passes, for those who draw them."""
    ordered = sorted(traces, key=lambda trace: trace.info.rank)
    passes = tuple(find_passes(trace) for trace in ordered)
    profile = breakdown(ordered[0], passes[0], model)
    rows = [_rank_row(trace, found.work) for trace, found in zip(ordered, passes, strict=True)]
    ranks, faults = match_ranks(rows, [found.work for found in passes])
    merged = _all_health(ordered, faults, profile.health)
    sources = tuple(dict.fromkeys(trace.info.source for trace in ordered))
    profile = profile.model_copy(update={"ranks": ranks, "health": merged, "sources": sources})
    return Analysis(profile.model_copy(update={"verdict": headline(profile)}), passes)


def breakdown(trace: TraceData, passes: Passes, model: ModelSizes | None = None) -> Profile:
    """Profile of one rank."""
    work, recorded = passes.work, recorded_collectives(trace, passes.work)
    profile = Profile(
        verdict="",
        sources=(trace.info.source,),
        program=passes.program,
        device="CPU" if work.is_cpu else ", ".join(dict.fromkeys(name for name in trace.info.device_names if name)),
        rule=passes.rule,
        coverage=passes.coverage,
        totals=_totals(work),
        passes=_pass_rows(passes, recorded, model),
        sizes=_sizes(work, recorded),
        health=_health(trace, passes),
        ranks=(_rank_row(trace, work),),
    )
    return profile.model_copy(update={"verdict": headline(profile)})


def _totals(work: Work) -> Totals:
    cost = cost_of(work, np.arange(len(work)))
    return Totals(
        span_us=ns_to_us(cost.wall_ns),
        busy_us=ns_to_us(cost.busy_ns),
        compute_us=ns_to_us(cost.compute_ns),
        communication_us=ns_to_us(cost.communication_ns),
        exposed_communication_us=ns_to_us(cost.exposed_communication_ns),
        overlapped_communication_us=ns_to_us(cost.communication_ns - cost.exposed_communication_ns),
        memory_us=ns_to_us(cost.memory_ns),
        idle_us=ns_to_us(cost.gap_ns),
        num_collectives=int(work.is_collective.sum()),
        num_kernels=int((~work.is_memory).sum()),
    )


def _rank_row(trace: TraceData, work: Work) -> RankRow:
    info = trace.info
    return RankRow(rank=info.rank, world_size=info.world_size, source=info.source, totals=_totals(work))


def _pass_rows(passes: Passes, recorded: dict[int, Recorded], model: ModelSizes | None) -> tuple[PassRow, ...]:
    idle_before_us = _idle_before_us(passes)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, one in enumerate(passes.passes):
        groups[one.kind, one.phase, one.batch, one.rows].append(i)
    return tuple(
        _pass_row(
            passes.work,
            [passes.passes[i] for i in members],
            [idle for i in members if (idle := idle_before_us[i]) is not None],
            recorded,
            model,
        )
        for members in groups.values()
    )


def _pass_row(
    work: Work,
    members: list[Pass],
    idle_before_us: list[float],
    recorded: dict[int, Recorded],
    model: ModelSizes | None,
) -> PassRow:
    costs = [cost_of(work, one.work) for one in members]
    all_reduces = [int(work.is_all_reduce[one.work].sum()) for one in members]
    collectives = collective_rows(work, recorded, [(one.work, one.rows) for one in members], model)
    wall_us, launch_gap_us = _median_us(costs, lambda c: c.wall_ns), _median_us(costs, lambda c: c.launch_gap_ns)
    return PassRow(
        kind=members[0].kind,
        phase=members[0].phase,
        batch=members[0].batch,
        rows=members[0].rows,
        count=len(members),
        all_reduces_per_pass=float(np.median(all_reduces)),
        all_reduces_min=min(all_reduces),
        all_reduces_max=max(all_reduces),
        collectives_per_pass=float(np.median([work.is_collective[one.work].sum() for one in members])),
        kernels_per_pass=float(np.median([(~work.is_memory[one.work]).sum() for one in members])),
        graph_launches_per_pass=float(np.median([_num_graphs(work, one) for one in members])),
        wall_us=wall_us,
        wall_min_us=ns_to_us(min(cost.wall_ns for cost in costs)),
        wall_max_us=ns_to_us(max(cost.wall_ns for cost in costs)),
        busy_us=_median_us(costs, lambda c: c.busy_ns),
        compute_us=_median_us(costs, lambda c: c.compute_ns),
        communication_us=_median_us(costs, lambda c: c.communication_ns),
        exposed_communication_us=_median_us(costs, lambda c: c.exposed_communication_ns),
        memory_us=_median_us(costs, lambda c: c.memory_ns),
        gap_us=_median_us(costs, lambda c: c.gap_ns),
        launch_gap_us=launch_gap_us,
        graph_gap_us=_median_us(costs, lambda c: c.graph_gap_ns),
        idle_before_us=float(np.median(idle_before_us)) if idle_before_us else 0.0,
        is_launch_bound=launch_gap_us > LAUNCH_BOUND_SHARE * wall_us,
        backends=tuple(dict.fromkeys(row.backend for row in collectives)),
        collectives=collectives,
    )


def _median_us(costs: list[Cost], of: Callable[[Cost], int]) -> float:
    return ns_to_us(float(np.median([of(cost) for cost in costs])))


def _num_graphs(work: Work, one: Pass) -> int:
    return len(np.unique(work.correlation[one.work[work.is_graph[one.work]]]))


def _idle_before_us(passes: Passes) -> list[float | None]:
    """Device idle time between each pass and what came before it; None for the first pass and for overlapping ones."""
    work, timeline = passes.work, Timeline(passes.work)
    result: list[float | None] = []
    previous_end_ns: int | None = None
    for one in passes.passes:
        start_ns, end_ns = int(work.start_ns[one.work[0]]), int(work.end_ns[one.work].max())
        idle = None if previous_end_ns is None else ns_to_us(timeline.idle_ns(previous_end_ns, start_ns))
        result.append(idle)
        previous_end_ns = end_ns if previous_end_ns is None else max(previous_end_ns, end_ns)
    return result


def _sizes(work: Work, recorded: dict[int, Recorded]) -> tuple[SizeRow, ...]:
    counts: Counter[tuple[str, int]] = Counter()
    for i in np.flatnonzero(work.is_collective).tolist():
        said = recorded.get(int(work.row[i]))
        if said and said.num_bytes is not None:
            op = work.kinds[work.name[i]].op or CollectiveOp.UNKNOWN
            counts[said.op if op is CollectiveOp.UNKNOWN else op, said.num_bytes] += 1
    return tuple(SizeRow(op=op, num_bytes=size, count=count) for (op, size), count in sorted(counts.items()))


def _health(trace: TraceData, passes: Passes) -> tuple[HealthRow, ...]:
    rows = [HealthRow(fault=row.fault, count=row.count, example=row.example) for row in trace.health.rows]
    work = passes.work
    if len(work) and passes.passes and passes.coverage < MIN_COVERAGE:
        owned = np.zeros(len(work), dtype=bool)
        for one in passes.passes:
            owned[one.work] = True
        outside = np.flatnonzero(~owned)
        example = work.names[work.name[outside[0]]]
        rows.append(HealthRow(fault="work outside every pass", count=len(outside), example=example))
    return tuple(rows)


def _all_health(
    traces: Sequence[TraceData], faults: Sequence[HealthRow], first: Sequence[HealthRow]
) -> tuple[HealthRow, ...]:
    """Rows of all ranks; rows of higher ranks name their rank in the example."""
    rows = list(first)
    for trace in traces[1:]:
        for row in trace.health.rows:
            rows.append(HealthRow(fault=row.fault, count=row.count, example=f"rank {trace.info.rank}: {row.example}"))
    return (*rows, *faults)
