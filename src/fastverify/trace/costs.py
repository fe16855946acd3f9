"""Time of a set of work rows: busy, compute, communication, exposed communication, copies and gaps, by interval unions.

Exposed communication is union(communication and compute) - union(compute). Copies and memsets are busy time but cover
nothing. On a CPU an operator that holds a collective is not computing while it waits, so nothing is covered.
A fused collective is communication as a whole. It knows no pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastverify.trace.events import Int64
from fastverify.trace.intervals import Intervals, union_of
from fastverify.trace.work import NO_TIME, Work


@dataclass(frozen=True)
class Cost:
    """Nanoseconds of one set of rows; `gap_ns` is wall time in which none of them ran."""

    wall_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    memory_ns: int
    launch_gap_ns: int
    graph_gap_ns: int
    piece_gap_ns: int

    @property
    def gap_ns(self) -> int:
        """Wall time in which nothing ran."""
        return self.wall_ns - self.busy_ns


def cost_of(work: Work, rows: Int64) -> Cost:
    """Cost of some rows, given in order of start."""
    busy = _union(work, rows)
    communication = _union(work, rows[work.is_communication[rows]])
    compute = _union(work, rows[~work.is_communication[rows] & ~work.is_memory[rows]])
    if work.is_cpu:
        compute = compute.subtract(communication)
    launch_gap_ns, graph_gap_ns, piece_gap_ns = _gaps(work, rows, busy)
    return Cost(
        wall_ns=busy.span,
        busy_ns=busy.length,
        compute_ns=compute.length,
        communication_ns=communication.length,
        exposed_communication_ns=communication.subtract(compute).length,
        memory_ns=_union(work, rows[work.is_memory[rows]]).length,
        launch_gap_ns=launch_gap_ns,
        graph_gap_ns=graph_gap_ns,
        piece_gap_ns=piece_gap_ns,
    )


class Timeline:
    """Busy time of all work, to ask how much of a window was idle."""

    def __init__(self, work: Work) -> None:
        busy = _union(work, np.arange(len(work)))
        self._starts, self._ends = busy.starts, busy.ends
        self._before = np.concatenate(([0], np.cumsum(busy.ends - busy.starts)))

    def idle_ns(self, start_ns: int, end_ns: int) -> int:
        """Idle time inside a window; 0 for an empty one."""
        if end_ns <= start_ns:
            return 0
        return end_ns - start_ns - (self._covered_until(end_ns) - self._covered_until(start_ns))

    def _covered_until(self, at_ns: int) -> int:
        i = int(np.searchsorted(self._starts, at_ns, side="right"))
        if i == 0:
            return 0
        return int(self._before[i]) - max(int(self._ends[i - 1]) - at_ns, 0)


def _union(work: Work, rows: Int64) -> Intervals:
    return union_of(work.start_ns[rows], work.end_ns[rows])


def _gaps(work: Work, rows: Int64, busy: Intervals) -> tuple[int, int, int]:
    """Gaps whose next kernel was launched after they began, gaps inside a graph, gaps where a graph begins or ends."""
    if len(busy) < 2:
        return 0, 0, 0
    rows = rows[work.end_ns[rows] > work.start_ns[rows]]
    following = np.searchsorted(work.start_ns[rows], busy.starts[1:], side="left")
    after, before = rows[following], rows[following - 1]
    lengths = busy.starts[1:] - busy.ends[:-1]
    in_graph = work.is_graph[after] & (work.correlation[after] == work.correlation[before])
    at_border = (work.is_graph[after] | work.is_graph[before]) & ~in_graph
    late = (work.launch_ns[after] != NO_TIME) & (work.launch_ns[after] > busy.ends[:-1]) & ~in_graph
    if work.is_cpu:
        late &= False
    return int(lengths[late].sum()), int(lengths[in_graph].sum()), int(lengths[at_border].sum())
