"""The chooser between real GPUs: what it measures here, it keeps, finds again and keeps exact, eager and in a graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastverify.comm.gpu.chooser import choose_gpu
from fastverify.comm.gpu.timing import timing_stream
from tests.comm.on_gpus.gpu_ranks import GPU_MARKS, TIMEOUT_S, gpu_group, is_shared, real_world
from tests.comm.on_gpus.test_contract import SIZES, check_back_to_back, check_late_ranks, check_refusals
from tests.comm.on_gpus.test_graphs import Call, GraphedSums, leave
from tests.contracts.all_reduce_contract import check_all_gather, check_fused_norms, check_sums
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
CALLS, REPLAYS = 2000, 2000


def test_the_choice_is_exact_and_kept(tmp_path: Path) -> None:
    world_size = real_world("push")
    if is_shared(world_size):
        pytest.skip("ranks that share a GPU take turns of milliseconds, so there is nothing to choose by")
    first = run_ranks(check_auto, world_size, str(tmp_path), timeout_s=TIMEOUT_S)
    assert len(list(tmp_path.glob("**/*.json"))) == 1
    second = run_ranks(check_auto, world_size, str(tmp_path), timeout_s=TIMEOUT_S)
    assert len({name for name, _ in (*first, *second)}) == 1
    assert all("measured in" in reason for _, reason in first)
    assert all("from " in reason for _, reason in second)


def check_auto(rank: int, world_size: int, rendezvous: str, cache: str) -> tuple[str, str]:
    """The name and the reason of the choice."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("FASTVERIFY_CACHE_DIR", cache)
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.cuda.stream(timing_stream(group.device)):
        backend, choice = choose_gpu(group)
        check_sums(backend, rank, world_size, SIZES, group.device)
        check_fused_norms(backend, rank, world_size, group.device)
        check_all_gather(backend, rank, world_size, group.device)
        check_back_to_back(backend, rank, world_size, group.device, CALLS)
        check_late_ranks(backend, rank, world_size, group.device)
        check_refusals(backend, group.device)
        calls = [Call(0, 2048), Call(2048, 7168), Call(9216, 28_672), Call(37_888, 458_752), Call(496_640, 515)]
        sums = GraphedSums(group, backend, calls, seed=9)
        for replay in range(REPLAYS):
            sums.replay(replay)
        assert int(sums.wrong) == 0
        leave(group, backend)
    return backend.name, choice.reason
