"""Interval algebra against the plainest model: one boolean per nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastverify.trace.intervals import Intervals, union_of

SIZE = 60
spans = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)


def to_set(pairs: list[tuple[int, int]]) -> Intervals:
    return union_of(np.array([a for a, _ in pairs], dtype=np.int64), np.array([b for _, b in pairs], dtype=np.int64))


def to_model(pairs: list[tuple[int, int]]) -> np.ndarray:
    model = np.zeros(SIZE, dtype=bool)
    for start, end in pairs:
        model[start:end] = True
    return model


def check(result: Intervals, model: np.ndarray) -> None:
    """Same time covered, and the set is in its normal form."""
    covered = np.zeros(SIZE, dtype=bool)
    for start, end in zip(result.starts, result.ends, strict=True):
        assert start < end
        covered[start:end] = True
    assert (covered == model).all()
    assert result.length == model.sum()
    assert (result.starts[1:] > result.ends[:-1]).all(), "disjoint, sorted, not touching"


@given(spans)
def test_union_of_anything(pairs: list[tuple[int, int]]) -> None:
    check(to_set(pairs), to_model(pairs))


@given(spans, spans)
def test_intersection_of_any_two(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    check(to_set(left).intersect(to_set(right)), to_model(left) & to_model(right))


def test_span_counts_the_holes() -> None:
    assert to_set([(5, 10), (20, 30)]).span == 25
    assert to_set([]).span == 0
