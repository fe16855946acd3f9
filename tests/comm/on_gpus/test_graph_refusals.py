"""What a graph cannot have: calls that were never warmed, two streams on one workspace, a rank that died."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from fastverify.comm.gpu.timing import capture, timing_stream
from fastverify.errors import FastverifyError, UnsupportedError
from tests.comm.on_gpus.gpu_ranks import (
    GPU_MARKS,
    OURS,
    GpuFactory,
    check_gpu_works,
    gpu_group,
    is_shared,
    raised_within,
    real_world,
    require,
)
from tests.comm.on_gpus.test_graphs import Call, GraphedSums, leave
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
KILLED_LIMIT_S = 10.0


@pytest.mark.parametrize("name", OURS)
def test_a_cold_capture_and_a_second_stream_are_refused(name: str) -> None:
    world_size = real_world(name)
    run_ranks(check_refusals, world_size, require(name, world_size))


@pytest.mark.parametrize("name", OURS)
def test_a_rank_killed_between_replays_frees_the_others(name: str) -> None:
    world_size = real_world(name)
    replays = 10 if is_shared(world_size) else 2000
    run_ranks(check_killed, world_size, require(name, world_size), replays, killed=(world_size - 1,))


def check_refusals(rank: int, world_size: int, rendezvous: str, factory: GpuFactory) -> None:
    with gpu_group(rank, world_size, rendezvous, 60) as group:
        backend = factory(group)
        warm, cold = (torch.ones(512, dtype=dtype, device=group.device) for dtype in (torch.bfloat16, torch.float16))
        first, second = timing_stream(group.device), torch.cuda.Stream(group.device)
        with torch.cuda.stream(first):
            backend.all_reduce(warm)
            assert warm[0] == world_size
            # A kernel that is loaded during a capture would break it; the error comes before that.
            with pytest.raises(FastverifyError, match=r"(?i)captur|warm"):
                capture(lambda: backend.all_reduce(cold), 1)
            capture(lambda: backend.all_reduce(warm), 1).replay()
            assert warm[0] == world_size**2
            torch.cuda._sleep(1_000_000_000)  # half a second
            backend.all_reduce(warm)
        with torch.cuda.stream(second), pytest.raises(UnsupportedError, match="one stream at a time"):
            backend.all_reduce(warm)
        first.synchronize()
        with torch.cuda.stream(second):
            backend.all_reduce(warm)
            assert warm[0] == world_size**4
        leave(group, backend)


def check_killed(rank: int, world_size: int, rendezvous: str, factory: GpuFactory, replays: int) -> None:
    victim = world_size - 1
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.cuda.stream(timing_stream(group.device)):
        backend = factory(group)
        sums = GraphedSums(group, backend, [Call(0, 7168), Call(7168, 86_016)], seed=3)
        for replay in range(replays):
            sums.replay(replay)
        torch.cuda.synchronize(group.device)
        assert int(sums.wrong) == 0
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        start_s = time.monotonic()
        for replay in range(20):
            sums.replay(replay)
        torch.cuda.synchronize(group.device)
        error = raised_within(backend, sums.work[:7168], KILLED_LIMIT_S)
        assert time.monotonic() - start_s < KILLED_LIMIT_S
        assert f"rank {victim}" in str(error)
        check_gpu_works(group.device)
        backend.close()
