"""The benchmark's ranks for real, in processes of their own, over backends that are gloo on a CPU."""

from functools import cache, partial

import pytest

from fastverify.comm.bench.gpu_lane import LanePlan
from fastverify.comm.bench.gpu_rows import GpuBenchConfig, GpuBenchResult, GpuBenchRow
from fastverify.comm.bench.gpu_run import run_gpu_bench
from fastverify.comm.bench.lanes import Lane, LaneSpec
from tests.comm.bench_fakes import NAMES, open_rank
from tests.ranks import CONTEXT

pytestmark = pytest.mark.ranks


@cache
def measure(
    world_size: int = 2, cold_l2: bool = False, dtype: str = "bfloat16", backends: tuple[str, ...] = NAMES
) -> GpuBenchResult:
    config = GpuBenchConfig(
        sizes=(1024, 4100),
        world_size=world_size,
        backends=backends,
        modes=("graph", "eager"),
        dtype=dtype,
        iterations=3,
        calls=6,
        cold_l2=cold_l2,
    )
    plan = LanePlan(LaneSpec("default", world_size, partial(open_rank, config)), backends, "default")
    return run_gpu_bench(config, plans=[plan], open_lane=partial(Lane, context=CONTEXT))


def rows_of(result: GpuBenchResult, backend: str, *, fused: bool, mode: str = "graph") -> list[GpuBenchRow]:
    return [row for row in result.rows if (row.backend, row.fused, row.mode) == (backend, fused, mode)]


@pytest.mark.parametrize("options", [{}, {"cold_l2": True}, {"dtype": "float16"}, {"world_size": 3}])
def test_right_backends_are_right_in_place_and_out_of_place(options: dict[str, object]) -> None:
    result = measure(**({"backends": ("push", "nccl")} | options if options else {}))
    for backend in ("push", "nccl"):
        for fused in (False, True):
            for mode, num_calls in (("graph", 6), ("eager", 1)):
                rows = rows_of(result, backend, fused=fused, mode=mode)
                assert [row.num_bytes for row in rows] == [1024, 4100]
                assert all(row.correct and row.num_calls == num_calls for row in rows), rows
                assert all(row.median_us is not None and len(row.samples_us) == 3 for row in rows)
    assert result.setups["push"] == "push for this test"
    assert result.empty_us is not None


def test_a_library_is_timed_in_the_style_that_suits_it() -> None:
    assert measure().setups["nccl"].startswith("nccl for this test; in place or out of place, whichever is faster")
    for fused in (False, True):
        assert all(
            row.median_us is not None and row.median_us < 9000 for row in rows_of(measure(), "nccl", fused=fused)
        )


def test_a_fused_kernel_is_compared_with_its_own_sum_and_torchs_norm() -> None:
    rows = rows_of(measure(), "push+norm", fused=True)
    assert len(rows) == 2
    assert all(row.correct for row in rows)


def test_a_kernel_that_fell_back_says_so() -> None:
    rows = rows_of(measure(), "push", fused=True)
    assert [(row.num_bytes, row.launch) for row in rows] == [(1024, None), (4100, "fell back: a row is too short")]


def test_other_bits_on_another_rank_are_wrong() -> None:
    assert [row.correct for row in rows_of(measure(), "host", fused=False)] == [False, False]


def test_a_chain_is_checked_not_only_its_first_call() -> None:
    assert [row.correct for row in rows_of(measure(), "vllm", fused=False)] == [False, False]
    assert [row.correct for row in rows_of(measure(), "vllm", fused=False, mode="eager")] == [True, True]


def test_a_norm_of_something_else_is_wrong() -> None:
    assert [row.correct for row in rows_of(measure(), "flashinfer", fused=True)] == [False, False]
    assert [row.correct for row in rows_of(measure(), "flashinfer", fused=False)] == [True, True]


def test_a_backend_that_one_rank_cannot_run_has_that_ranks_reason() -> None:
    assert {row.reason for row in rows_of(measure(), "mscclpp", fused=False)} == {"no such GPU here"}
