from dataclasses import replace

import numpy as np
import pytest

from fastverify.trace.breakdown import profile_of
from fastverify.trace.collectives import ModelSizes
from fastverify.trace.events import CollectiveArgs
from tests.trace.make import ALL_GATHER, ALL_REDUCE, GEMM, Kernel, Mark, layers, make_trace

VERIFY = "execute_context_0(0)_generation_1(4)"


def verify_passes(num_passes: int, num_layers: int = 2, rank: int = 0, delay_us: float = 0.0):
    kernels = [k for i in range(num_passes) for k in layers(num_layers, 100 * i + delay_us, launch_us=100 * i)]
    return make_trace(kernels, [Mark(VERIFY, 100 * i, 100 * i + 5) for i in range(num_passes)], rank, 2)


def test_one_row_per_kind_with_medians_over_its_passes() -> None:
    profile = profile_of([verify_passes(3)])
    (row,) = profile.passes
    assert (row.kind, row.batch, row.rows, row.count) == ("verify", 1, 4, 3)
    assert (row.wall_us, row.compute_us, row.exposed_communication_us, row.gap_us) == (8.0, 4.0, 4.0, 0.0)
    assert (row.all_reduces_per_pass, row.kernels_per_pass, row.graph_launches_per_pass) == (4, 8, 1)
    assert row.idle_before_us == pytest.approx(92.0)
    assert row.backends == ("custom_all_reduce",)


def test_sizes_come_from_the_model_where_the_file_has_none() -> None:
    (row,) = profile_of([verify_passes(1)], ModelSizes(hidden_size=7168)).passes
    assert (row.collectives[0].num_bytes, row.collectives[0].bytes_source) == (4 * 7168 * 2, "model and rows")
    (row,) = profile_of([verify_passes(1)]).passes
    assert (row.collectives[0].num_bytes, row.collectives[0].bytes_source) == (None, "unknown")


def test_sizes_of_the_file_win_and_make_the_histogram() -> None:
    trace = make_trace([Kernel(ALL_GATHER, 0, 5, 0), Kernel(ALL_REDUCE, 10, 5, 1)], [Mark("step[DECODE bs=2]", 0, 5)])
    trace.names.extend(["_allgather_base", "BFloat16"])
    one = [np.array([v], dtype=np.int32) for v in (len(trace.names) - 2, len(trace.names) - 1, -1, -1, 2)]
    args = CollectiveArgs(
        np.zeros(1, np.uint8), np.zeros(1, np.int32), *one, *(np.array([v]) for v in (1000, 2000, -1))
    )
    profile = profile_of([replace(trace, collective_args=args)], ModelSizes(hidden_size=10))
    sizes = {row.op: (row.num_bytes, row.bytes_source) for row in profile.passes[0].collectives}
    assert sizes == {"all_gather": (2000, "file"), "all_reduce": (2 * 10 * 2, "model and rows")}
    histogram = [(row.op, row.num_bytes, row.count) for row in profile.sizes]
    assert histogram == [("all_gather", 2000, 1), ("all_reduce", 40, 1)]


def test_a_pass_that_waits_for_its_launches_is_launch_bound() -> None:
    kernels = [Kernel(GEMM, 10 * i, 4, launch_us=10 * i - 1) for i in range(5)]
    (row,) = profile_of([make_trace(kernels, [Mark("step[DECODE bs=1]", -5, 60)])]).passes
    assert row.is_launch_bound
    assert row.launch_gap_us == pytest.approx(24.0)


def test_work_outside_passes_is_a_line_of_health() -> None:
    kernels = [Kernel(GEMM, 10, 4, launch_us=1), Kernel(GEMM, 50, 4, launch_us=40)]
    profile = profile_of([make_trace(kernels, [Mark("step[DECODE bs=1]", 0, 5)])])
    assert [(row.fault, row.count, row.example) for row in profile.health] == [("work outside every pass", 1, GEMM)]
    assert profile.coverage == 0.5


def test_ranks_are_aligned_on_ends_and_the_late_one_is_named() -> None:
    """Rank 1 starts each collective 3 us early on a clock 1 s ahead; both end together."""
    early = []
    for i in range(10):
        early += [Kernel(GEMM, 1e6 + 100 * i, 10, 5 * i), Kernel(ALL_REDUCE, 1e6 + 100 * i + 17, 13, 5 * i + 1)]
    late = []
    for i in range(10):
        late += [Kernel(GEMM, 100 * i, 10, 5 * i), Kernel(ALL_REDUCE, 100 * i + 20, 10, 5 * i + 1)]
    profile = profile_of([make_trace(early, rank=1, world_size=2), make_trace(late, rank=0, world_size=2)])
    late_row, early_row = profile.ranks
    assert (late_row.rank, early_row.rank) == (0, 1)
    assert (late_row.waiting_us, early_row.waiting_us) == (0.0, 30.0)
    assert late_row.transfer_us == early_row.transfer_us == 100.0
    assert early_row.clock_offset_us == pytest.approx(1e6)
    assert late_row.is_straggler
    assert not early_row.is_straggler
    assert (late_row.last_arrivals, early_row.last_arrivals) == (10, 0)


def test_ranks_that_are_late_in_turn_have_no_straggler() -> None:
    def trace(rank: int):
        kernels = []
        for i in range(10):
            waits = 5 * ((i + rank) % 2)
            kernels.append(Kernel(ALL_REDUCE, 100 * i - waits, 10 + waits, 5 * i))
        return make_trace(kernels, rank=rank, world_size=2)

    assert not any(row.is_straggler for row in profile_of([trace(0), trace(1)]).ranks)


def test_different_counts_are_not_matched_and_said() -> None:
    traces = [verify_passes(2), verify_passes(1, rank=1)]
    profile = profile_of(traces)
    assert [row.waiting_us for row in profile.ranks] == [None, None]
    (fault,) = [row for row in profile.health if "not matched" in row.fault]
    assert (fault.count, fault.example) == (8, "all_reduce custom_all_reduce: 8 on rank 0, 4 on rank 1")


def test_two_files_of_one_rank_are_not_two_ranks() -> None:
    profile = profile_of([verify_passes(1), verify_passes(1)])
    assert profile.ranks[0].waiting_us is None
    assert [row.fault for row in profile.health] == ["several files claim one rank"]


def test_the_verdict_names_the_pass_its_collectives_and_the_straggler() -> None:
    delayed = verify_passes(4)
    waiting = make_trace(
        [
            Kernel(k.name, k.start_us - 5 * (k.name == ALL_REDUCE), 1 + 5 * (k.name == ALL_REDUCE), k.launch_us, True)
            for i in range(4)
            for k in layers(2, 100 * i, launch_us=100 * i)
        ],
        rank=1,
        world_size=2,
    )
    profile = profile_of([delayed, waiting])
    assert (profile.passes[0].waiting_us, profile.passes[0].transfer_us) == (0.0, 4.0)
    assert profile.verdict == (
        "A verify pass (batch 1, 4 rows) takes 8 us (median of 4); 4 all-reduces (custom all reduce) cost 4 us of it "
        "with no compute under them (50%); rank 1 waits for rank 0."
    )


def test_an_empty_file_has_a_verdict_too() -> None:
    assert profile_of([make_trace([])]).verdict.startswith("The file holds no device work")
