"""Interval algebra on int64 nanoseconds: unions and intersections of half-open [start, end) sets.

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

    def intersect(self, other: Intervals) -> Intervals:
        """Time covered by both: every piece where one of mine meets one of theirs."""
        first = np.searchsorted(other.ends, self.starts, side="right")
        num_met = np.searchsorted(other.starts, self.ends, side="left") - first
        mine = np.repeat(np.arange(len(self)), num_met)
        skipped = np.cumsum(num_met) - num_met
        theirs = np.arange(len(mine)) + (first - skipped)[mine]
        return Intervals(
            np.maximum(self.starts[mine], other.starts[theirs]), np.minimum(self.ends[mine], other.ends[theirs])
        )


def union_of(starts: Int64, ends: Int64) -> Intervals:
    """The set that any intervals cover; in any order, overlapping or not. Empty and negative ones cover nothing."""
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    kept = ends > starts
    if not kept.all():
        starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return Intervals(starts, ends)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    is_first = np.concatenate(([True], starts[1:] > reach[:-1]))
    is_last = np.concatenate((is_first[1:], [True]))
    return Intervals(starts[is_first], reach[is_last])
