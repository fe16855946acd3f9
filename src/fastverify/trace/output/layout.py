"""Where the kernels of one pass go on a page: lines of equal length, ranks below each other, long idle times cut out.

Positions are microseconds of drawn time from the start of the pass. It knows no SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastverify.trace.events import Int64
from fastverify.trace.intervals import union_of
from fastverify.trace.kinds import KernelKind
from fastverify.trace.work import Work

# Arbitrary: a line with more kernels than this cannot be read at a page's width.
KERNELS_PER_LINE = 90
# Arbitrary: a page with more lines is scrolled past.
MAX_LINES = 14
# Arbitrary: all cut idle times together get this share of the busy time, each at most MAX_GAP_SHARE.
MAX_GAPS_SHARE = 0.2
MAX_GAP_SHARE = 0.01


@dataclass(frozen=True)
class Box:
    """One kernel; `number` counts collectives from 1 and is 0 for other kernels."""

    rank_index: int
    start_us: float
    end_us: float
    duration_us: float
    kind: KernelKind
    is_memory: bool
    name: str
    number: int


@dataclass(frozen=True)
class Cut:
    """An idle time that is drawn shorter than it was."""

    start_us: float
    end_us: float
    idle_us: float


@dataclass(frozen=True)
class Layout:
    """All boxes and cuts of a pass in drawn time, and how it is broken into lines."""

    boxes: tuple[Box, ...]
    cuts: tuple[Cut, ...]
    length_us: float
    num_lines: int

    @property
    def line_us(self) -> float:
        """Drawn time of one line."""
        return self.length_us / self.num_lines


def lay_out(works: Sequence[Work], rows: Sequence[Int64], offsets_ns: Sequence[int]) -> Layout:
    """Layout of one pass: per rank its work, the rows of the pass and what to subtract from its clock."""
    starts = [work.start_ns[i] - offset for work, i, offset in zip(works, rows, offsets_ns, strict=True)]
    ends = [work.end_ns[i] - offset for work, i, offset in zip(works, rows, offsets_ns, strict=True)]
    busy = union_of(np.concatenate(starts), np.concatenate(ends))
    gaps = busy.starts[1:] - busy.ends[:-1]
    num_gaps = max(int((gaps > busy.length * MAX_GAP_SHARE).sum()), 1)
    longest_ns = max(int(busy.length * min(MAX_GAP_SHARE, MAX_GAPS_SHARE / num_gaps)), 1)
    removed = np.concatenate(([0], np.cumsum(np.maximum(gaps - longest_ns, 0))))

    def drawn_us(times_ns: Int64) -> NDArray[np.float64]:
        piece = np.clip(np.searchsorted(busy.starts, times_ns, side="right") - 1, 0, len(busy) - 1)
        return (times_ns - int(busy.starts[0]) - removed[piece]) / 1000

    boxes: list[Box] = []
    for index, (work, chosen) in enumerate(zip(works, rows, strict=True)):
        numbers = np.cumsum(work.is_collective[chosen]) * work.is_collective[chosen]
        columns = (chosen, drawn_us(starts[index]), drawn_us(ends[index]), ends[index] - starts[index], numbers)
        boxes += [
            Box(
                index,
                float(start),
                float(end),
                float(duration) / 1000,
                work.kinds[work.name[i]],
                bool(work.is_memory[i]),
                work.names[work.name[i]],
                int(number),
            )
            for i, start, end, duration, number in zip(*columns, strict=True)
        ]
    ends_us = drawn_us(busy.ends)
    cuts = [
        Cut(float(ends_us[i]), float(ends_us[i]) + longest_ns / 1000, float(gaps[i]) / 1000)
        for i in np.flatnonzero(gaps > longest_ns)
    ]
    per_rank = max(len(chosen) for chosen in rows)
    num_lines = min(max(round(per_rank / KERNELS_PER_LINE), 1), MAX_LINES)
    return Layout(tuple(boxes), tuple(cuts), float(ends_us[-1]), num_lines)
