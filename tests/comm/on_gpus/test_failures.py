"""A rank that never comes or is killed: the others get an error that names it, and their GPUs are free afterwards."""

from __future__ import annotations

import os
import signal
from functools import cache

import pytest
import torch

from fastverify.comm.group import create_group
from tests.comm.on_gpus.gpu_ranks import (
    GPU_MARKS,
    OURS,
    GpuFactory,
    check_gpu_works,
    raised_within,
    read_holdings,
    require,
    smallest_world,
)
from tests.contracts.all_reduce_contract import joined
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
# Longer than a kernel takes to compile: the first call of one rank may wait that long for another.
ABSENCE_TIMEOUT_S = 5.0
# Arbitrary: far below the group's timeout of a minute, far above what a busy machine needs.
DEATH_LIMIT_S = 10.0
# A context of CUDA holds several times as much.
LEFT_OVER_BYTES = 64 << 20


@pytest.mark.parametrize("name", OURS)
def test_a_rank_that_never_comes_is_an_error(name: str) -> None:
    run_ranks(check_absent_rank, smallest_world(name), require(name, smallest_world(name)))


@pytest.mark.parametrize("name", OURS)
def test_a_killed_rank_is_an_error_long_before_the_timeout(name: str) -> None:
    """Afterwards nothing is left on the GPUs, and new ranks work on them."""
    world_size = smallest_world(name)
    factory = require(name, world_size)
    before = gpu_bytes_at_rest()
    run_ranks(check_killed_rank, world_size, factory, killed=(world_size - 1,))
    assert run_ranks(read_gpu_bytes, 1)[0] - before < LEFT_OVER_BYTES
    run_ranks(check_one_sum, world_size, factory)


@cache
def gpu_bytes_at_rest() -> int:
    """What is in use on the first GPU while only the measuring process uses it."""
    return run_ranks(read_gpu_bytes, 1)[0]


def check_absent_rank(rank: int, world_size: int, rendezvous: str, factory: GpuFactory) -> None:
    device, absent = factory.pick_device(rank), world_size - 1
    group = create_group(rank, world_size, rendezvous, timeout_s=ABSENCE_TIMEOUT_S, device=device)
    backend = factory(group)
    x = torch.ones(4096, dtype=torch.bfloat16, device=device)
    backend.all_reduce(x)
    torch.cuda.synchronize(device)
    assert group.store is not None
    if rank == absent:  # alive, or this would be the death of a rank
        group.store.wait([f"rank {peer} is done" for peer in range(absent)])
        return
    error = raised_within(backend, x, 2 * ABSENCE_TIMEOUT_S)
    # With more ranks, one may wait for a part that another could not make without the absent one.
    assert f"rank {absent}" in str(error) or world_size > 2
    check_gpu_works(device)
    group.store.set(f"rank {rank} is done", "")


def check_killed_rank(rank: int, world_size: int, rendezvous: str, factory: GpuFactory) -> None:
    device, victim = factory.pick_device(rank), world_size - 1
    group = create_group(rank, world_size, rendezvous, timeout_s=60, device=device)
    backend = factory(group)
    x = torch.ones(4096, dtype=torch.bfloat16, device=device)
    backend.all_reduce(x)
    torch.cuda.synchronize(device)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    error = raised_within(backend, x, DEATH_LIMIT_S)
    assert f"rank {victim}" in str(error), str(error)
    check_gpu_works(device)
    backend.close()


def check_one_sum(rank: int, world_size: int, rendezvous: str, factory: GpuFactory) -> None:
    device = factory.pick_device(rank)
    with joined(rank, world_size, rendezvous, factory, timeout_s=60) as backend:
        assert backend.all_reduce(torch.ones(5000, device=device))[4999] == world_size


def read_gpu_bytes(rank: int, _world_size: int, _rendezvous: str) -> int:
    return read_holdings(GpuFactory("").pick_device(rank)).gpu_bytes
