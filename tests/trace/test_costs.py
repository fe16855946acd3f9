import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.trace import costs
from fastverify.trace.costs import Timeline, cost_of
from fastverify.trace.work import work_of
from tests.trace.make import ALL_REDUCE, COPY, GEMM, Kernel, make_trace


def cost(kernels: list[Kernel]):
    work = work_of(make_trace(kernels))
    return cost_of(work, np.arange(len(work)))


def test_overlapping_kernels_of_one_stream_are_busy_once() -> None:
    found = cost([Kernel(GEMM, 0, 10), Kernel(GEMM, 8, 10)])
    assert (found.wall_ns, found.busy_ns, found.compute_ns, found.gap_ns) == (18_000, 18_000, 18_000, 0)


def test_exposed_communication_is_what_no_compute_covers() -> None:
    found = cost([Kernel(GEMM, 0, 10), Kernel(ALL_REDUCE, 6, 10, stream=9)])
    assert (found.communication_ns, found.exposed_communication_ns) == (10_000, 6_000)


def test_a_copy_is_busy_but_covers_nothing() -> None:
    found = cost([Kernel(COPY, 0, 10), Kernel(ALL_REDUCE, 0, 10, stream=9), Kernel(COPY, 20, 5)])
    assert found.exposed_communication_ns == 10_000
    assert (found.memory_ns, found.busy_ns, found.compute_ns) == (15_000, 15_000, 0)


def test_a_gap_is_of_the_launch_only_when_the_launch_came_after_it_began() -> None:
    late = [Kernel(GEMM, 0, 10, launch_us=-5), Kernel(GEMM, 30, 10, launch_us=25)]
    early = [Kernel(GEMM, 0, 10, launch_us=-5), Kernel(GEMM, 30, 10, launch_us=-4)]
    assert (cost(late).launch_gap_ns, cost(early).launch_gap_ns) == (20_000, 0)
    assert cost(early).gap_ns == 20_000


def test_a_gap_inside_one_graph_is_named_so() -> None:
    found = cost([Kernel(GEMM, 0, 10, 1, True), Kernel(GEMM, 13, 10, 1, True), Kernel(GEMM, 25, 5, 24, True)])
    assert (found.graph_gap_ns, found.launch_gap_ns, found.gap_ns) == (3_000, 2_000, 5_000)
    assert found.piece_gap_ns == 2_000


def test_gaps_do_not_depend_on_the_size_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [Kernel(GEMM, 20 * i, 10, 20 * i + (-9, 1, -25)[i % 3], i % 4 == 3) for i in range(30)]
    whole = cost(kernels)
    assert whole.launch_gap_ns
    assert whole.piece_gap_ns
    for size in (1, 7, 29, 30):
        monkeypatch.setattr(costs, "_BLOCK_GAPS", size)
        assert cost(kernels) == whole


rows = st.lists(
    st.builds(
        Kernel,
        st.sampled_from([GEMM, ALL_REDUCE, COPY]),
        st.integers(0, 60),
        st.integers(0, 12),
        st.none() | st.integers(0, 60),
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@given(rows)
def test_parts_make_the_wall_span(kernels: list[Kernel]) -> None:
    """Against sets of unit times, which know no interval arithmetic."""
    cells = {kind: set() for kind in (GEMM, ALL_REDUCE, COPY)}
    for kernel in kernels:
        cells[kernel.name] |= set(range(int(kernel.start_us), int(kernel.start_us + kernel.dur_us)))
    busy = set().union(*cells.values())
    found = cost(kernels)
    assert found.wall_ns == 1000 * (max(busy) + 1 - min(busy) if busy else 0)
    assert found.busy_ns == 1000 * len(busy)
    assert found.compute_ns == 1000 * len(cells[GEMM])
    assert found.communication_ns == 1000 * len(cells[ALL_REDUCE])
    assert found.exposed_communication_ns == 1000 * len(cells[ALL_REDUCE] - cells[GEMM])
    assert found.memory_ns == 1000 * len(cells[COPY])
    assert 0 <= max(found.launch_gap_ns, found.piece_gap_ns) + found.graph_gap_ns <= found.gap_ns


@given(rows, st.integers(0, 80), st.integers(0, 80))
def test_idle_time_of_any_window(kernels: list[Kernel], start_us: int, end_us: int) -> None:
    busy = {t for k in kernels for t in range(int(k.start_us), int(k.start_us + k.dur_us))}
    idle = len(set(range(start_us, end_us)) - busy)
    assert Timeline(work_of(make_trace(kernels))).idle_ns(start_us * 1000, end_us * 1000) == pytest.approx(idle * 1000)
