"""Interval algebra on int64 nanoseconds: unions, intersections and differences of half-open [start, end) sets.

Kernels overlap, on one stream too (programmatic dependent launch), so the sum of durations is not busy time. Every
length in a profile is the length of a union made here. A set is two arrays, sorted, disjoint, none empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """A normalised set: starts and ends sorted, disjoint, not touching. Build it with `union_of`."""

    starts: Int64
    ends: Int64

    @property
    def length(self) -> int:
        """Total covered time."""
        return int((self.ends - self.starts).sum())

    @property
    def span(self) -> int:
        """From the first start to the last end; 0 for an empty set."""
        return int(self.ends[-1] - self.starts[0]) if len(self.starts) else 0

    def __len__(self) -> int:
        return len(self.starts)

    def union(self, other: Intervals) -> Intervals:
        """Time covered by either."""
        return union_of(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def intersect(self, other: Intervals) -> Intervals:
        """Time covered by both."""
        return _where_covered(self, other, wanted=2)

    def subtract(self, other: Intervals) -> Intervals:
        """Time covered by this set and not by the other."""
        if not len(self) or not len(other):
            return self
        return self.intersect(other.complement(int(self.starts[0]), int(self.ends[-1])))

    def complement(self, start: int, end: int) -> Intervals:
        """Time inside [start, end) that the set does not cover."""
        starts = np.concatenate(([start], np.clip(self.ends, start, end)))
        ends = np.concatenate((np.clip(self.starts, start, end), [end]))
        return union_of(starts, ends)


def union_of(starts: Int64, ends: Int64) -> Intervals:
    """The set that any intervals cover; in any order, overlapping or not. Empty and negative ones cover nothing."""
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return Intervals(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate(([True], starts[1:] > reach[:-1]))
    is_last = np.concatenate((is_first[1:], [True]))
    return Intervals(starts[is_first], reach[is_last])


def _where_covered(left: Intervals, right: Intervals, *, wanted: int) -> Intervals:
    """Time that `wanted` of the two sets cover, by a sweep over all their ends."""
    points = np.concatenate((left.starts, right.starts, left.ends, right.ends))
    num_opened = len(left) + len(right)
    steps = np.concatenate((np.ones(num_opened, dtype=np.int64), -np.ones(num_opened, dtype=np.int64)))
    order = np.argsort(points, kind="stable")
    points, depth = points[order], np.cumsum(steps[order])
    inside = depth[:-1] >= wanted
    return union_of(points[:-1][inside], points[1:][inside])
