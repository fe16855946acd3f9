"""Rows of passes: what the passes of one kind, phase, batch and row count have in common.

Medians, not means: the first pass of a recording carries the start of the profiler. It knows one rank only; what the
other ranks say about its collectives comes in `Known`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fastverify.trace.collectives import ModelSizes, Recorded, collective_rows
from fastverify.trace.costs import Timeline, cost_of
from fastverify.trace.events import Int64
from fastverify.trace.passes import Pass, Passes
from fastverify.trace.profile import PassRow
from fastverify.trace.ranks import UNMATCHED
from fastverify.trace.work import Work
from fastverify.units import ns_to_us

# Arbitrary: below this share of the wall span a late launch is not what the pass is slow from.
LAUNCH_BOUND_SHARE = 0.2


@dataclass(frozen=True)
class Known:
    """What is known besides the work: sizes from the file, the model, and per row the transfer part of a collective."""

    recorded: dict[int, Recorded]
    model: ModelSizes | None = None
    transfer_ns: Int64 | None = None


def pass_rows(passes: Passes, known: Known) -> tuple[PassRow, ...]:
    """One row per kind, phase, batch and row count, in order of their first pass."""
    idle_before_us = _idle_before_us(passes)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, one in enumerate(passes.passes):
        groups[one.kind, one.phase, one.batch, one.rows].append(i)
    rows = []
    for members in groups.values():
        idle_us = [idle for i in members if (idle := idle_before_us[i]) is not None]
        rows.append(_pass_row(passes.work, [passes.passes[i] for i in members], idle_us, known))
    return tuple(rows)


def _pass_row(work: Work, members: Sequence[Pass], idle_before_us: list[float], known: Known) -> PassRow:
    costs = [cost_of(work, one.work) for one in members]
    all_reduces = [int(work.is_all_reduce[one.work].sum()) for one in members]
    collectives = collective_rows(work, known.recorded, [(one.work, one.rows) for one in members], known.model)
    wall_us, launch_gap_us = _median_us(c.wall_ns for c in costs), _median_us(c.launch_gap_ns for c in costs)
    waiting_us, transfer_us = _waiting_and_transfer_us(work, members, known.transfer_ns)

    def median(count: Callable[[Pass], int]) -> float:
        return float(np.median([count(one) for one in members]))

    return PassRow(
        kind=members[0].kind,
        phase=members[0].phase,
        batch=members[0].batch,
        rows=members[0].rows,
        count=len(members),
        all_reduces_per_pass=float(np.median(all_reduces)),
        all_reduces_min=min(all_reduces),
        all_reduces_max=max(all_reduces),
        collectives_per_pass=median(lambda one: int(work.is_collective[one.work].sum())),
        kernels_per_pass=median(lambda one: int((~work.is_memory[one.work]).sum())),
        graph_launches_per_pass=median(lambda one: _num_graphs(work, one)),
        wall_us=wall_us,
        wall_min_us=ns_to_us(min(c.wall_ns for c in costs)),
        wall_max_us=ns_to_us(max(c.wall_ns for c in costs)),
        busy_us=_median_us(c.busy_ns for c in costs),
        compute_us=_median_us(c.compute_ns for c in costs),
        communication_us=_median_us(c.communication_ns for c in costs),
        exposed_communication_us=_median_us(c.exposed_communication_ns for c in costs),
        memory_us=_median_us(c.memory_ns for c in costs),
        gap_us=_median_us(c.gap_ns for c in costs),
        launch_gap_us=launch_gap_us,
        graph_gap_us=_median_us(c.graph_gap_ns for c in costs),
        piece_gap_us=_median_us(c.piece_gap_ns for c in costs),
        idle_before_us=float(np.median(idle_before_us)) if idle_before_us else 0.0,
        waiting_us=waiting_us,
        transfer_us=transfer_us,
        is_launch_bound=launch_gap_us > LAUNCH_BOUND_SHARE * wall_us,
        backends=tuple(dict.fromkeys(row.backend for row in collectives)),
        collectives=collectives,
    )


def _median_us(values_ns: Iterable[int]) -> float:
    return ns_to_us(float(np.median(list(values_ns))))


def _num_graphs(work: Work, one: Pass) -> int:
    return len(np.unique(work.correlation[one.work[work.is_graph[one.work]]]))


def _waiting_and_transfer_us(
    work: Work, members: Sequence[Pass], transfer_ns: Int64 | None
) -> tuple[float | None, float | None]:
    """Medians over passes of the two parts of their matched collectives; None where a collective is not matched."""
    if transfer_ns is None:
        return None, None
    waiting, transfer = [], []
    for one in members:
        rows = one.work[work.is_collective[one.work]]
        if not len(rows) or (transfer_ns[rows] == UNMATCHED).any():
            return None, None
        transfer.append(int(transfer_ns[rows].sum()))
        waiting.append(int((work.end_ns[rows] - work.start_ns[rows]).sum()) - transfer[-1])
    return _median_us(waiting), _median_us(transfer)


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
