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

_BLOCK_GAPS = 1 << 16


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
    wall_ns, busy_ns = busy.span, busy.length
    launch_gap_ns, graph_gap_ns, piece_gap_ns = _gaps(work, rows, busy)
    del busy  # as long as the file's work, and so is what follows
    communication = _union(work, rows[work.is_communication[rows]])
    compute = _union(work, rows[~work.is_communication[rows] & ~work.is_memory[rows]])
    overlap_ns = communication.intersect(compute).length
    return Cost(
        wall_ns=wall_ns,
        busy_ns=busy_ns,
        compute_ns=compute.length - (overlap_ns if work.is_cpu else 0),
        communication_ns=communication.length,
        exposed_communication_ns=communication.length - (0 if work.is_cpu else overlap_ns),
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
    """Gaps whose next kernel was launched after they began, gaps inside a graph, gaps where a graph begins or ends.

    In blocks: over a long file the columns below would be as large as its tables.
    """
    rows = rows[work.end_ns[rows] > work.start_ns[rows]]
    starts_ns = work.start_ns[rows]
    launch_ns = graph_ns = piece_ns = 0
    for begin in range(0, len(busy) - 1, _BLOCK_GAPS):
        gap_ends = busy.starts[begin + 1 : begin + 1 + _BLOCK_GAPS]
        gap_starts = busy.ends[begin : begin + len(gap_ends)]
        following = np.searchsorted(starts_ns, gap_ends, side="left")
        after, before = rows[following], rows[following - 1]
        lengths = gap_ends - gap_starts
        in_graph = work.is_graph[after] & (work.correlation[after] == work.correlation[before])
        at_border = (work.is_graph[after] | work.is_graph[before]) & ~in_graph
        late = (work.launch_ns[after] != NO_TIME) & (work.launch_ns[after] > gap_starts) & ~in_graph
        launch_ns += 0 if work.is_cpu else int(lengths[late].sum())
        graph_ns += int(lengths[in_graph].sum())
        piece_ns += int(lengths[at_border].sum())
    return launch_ns, graph_ns, piece_ns
