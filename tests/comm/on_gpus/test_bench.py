"""The benchmark on real GPUs: every row is timed and right, or says why it is missing."""

from __future__ import annotations

import pytest
import torch

from fastverify.comm.bench.gpu_rows import GpuBenchConfig, GpuBenchResult
from fastverify.comm.bench.gpu_run import run_gpu_bench
from tests.comm.on_gpus.gpu_ranks import GPU_MARKS

pytestmark = GPU_MARKS


def measure(**changes: object) -> GpuBenchResult:
    settings = {"sizes": (8192, 57_344), "world_size": 2, "backends": ("push", "host"), "iterations": 5}
    return run_gpu_bench(GpuBenchConfig(**(settings | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("cold_l2", [False, True])
def test_virtual_ranks_are_timed_in_graphs_and_eagerly(cold_l2: bool) -> None:
    result = measure(virtual=True, modes=("graph", "eager"), cold_l2=cold_l2)
    assert [row.reason for row in result.rows if row.reason] == []
    assert all(row.correct for row in result.rows)
    floor_us = result.empty_us
    assert floor_us is not None
    assert all(row.median_us > floor_us for row in result.rows if row.mode == "graph" and row.median_us is not None)


def test_every_launch_that_tuning_tries_is_right_or_refused_alone() -> None:
    result = measure(virtual=True, tune=True, sizes=(14_336,))
    assert any(row.is_candidate and row.correct for row in result.rows)
    assert all(row.correct is not False for row in result.rows)
    assert all(row.correct for row in result.rows if not row.is_candidate)


def test_processes_are_timed_or_at_least_checked_where_they_share_a_gpu() -> None:
    result = measure(backends=("push", "host", "nccl"), sizes=(8192,))
    ours = [row for row in result.rows if row.backend != "nccl"]
    assert all(row.correct for row in ours), result.setups
    nccl = [row for row in result.rows if row.backend == "nccl"]
    if torch.cuda.device_count() >= 2:
        assert all(row.correct for row in nccl), result.setups
    else:
        assert all(row.reason and "share" in row.reason for row in nccl)
        assert any("share" in remark for remark in result.remarks)
