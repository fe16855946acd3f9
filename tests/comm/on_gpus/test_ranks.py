"""The ground that the other tests here stand on: rank processes start without CUDA, each on its own GPU."""

from __future__ import annotations

import torch

from tests.comm.on_gpus.gpu_ranks import GPU_MARKS, GpuFactory
from tests.ranks import run_ranks

pytestmark = GPU_MARKS


def test_ranks_start_without_cuda_and_spread_over_the_gpus() -> None:
    """A process forked from one that has used CUDA cannot use it, so the one that forks them must not."""
    count = torch.cuda.device_count()
    assert run_ranks(pick_gpu, count + 1) == [*range(count), 0]


def pick_gpu(rank: int, world_size: int, rendezvous: str) -> int:
    assert not torch.cuda.is_initialized()
    device = GpuFactory("").pick_device(rank)
    assert torch.ones(3, device=device).sum() == 3
    return torch.cuda.current_device()
