"""The contract of an all-reduce backend over our GPU kernels, with rank processes that share a GPU or have one each."""

from __future__ import annotations

import time
import zlib

import pytest
import torch

from fastverify.comm.backend import AllReduceBackend
from fastverify.errors import UnsupportedError
from tests.comm.on_gpus.gpu_ranks import GPU_MARKS, OURS, TIMEOUT_S, GpuFactory, is_shared, require
from tests.contracts.all_reduce_contract import (
    check_all_gather,
    check_fused_norms,
    check_sums,
    check_two_groups,
    joined,
    make_inputs,
    sum_to_the_bit,
)
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
SIZES = (1, 2, 15, 16, 17, 63, 1000, 4096, 5121, 40_001)
MIXED_SIZES = (1, 700, 9, 3000, 64, 2, 20_000)


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("name", OURS)
def test_contract(name: str, world_size: int) -> None:
    """Answers, calls back to back, a late rank and refusals: one test, because starting ranks is what costs time."""
    factory = require(name, world_size)
    calls = 40 if is_shared(world_size) else 5000
    answers = run_ranks(check_contract, world_size, factory, calls, timeout_s=TIMEOUT_S)
    assert all(answer == answers[0] for answer in answers), "ranks hold different bits"


@pytest.mark.parametrize("name", OURS)
def test_two_groups_at_once(name: str) -> None:
    """Three ranks in one group, two of them in another."""
    require(name, 2)
    run_ranks(check_two_groups, 3, require(name, 3), timeout_s=TIMEOUT_S)


def check_contract(rank: int, world_size: int, rendezvous: str, factory: GpuFactory, calls: int) -> int:
    device = factory.pick_device(rank)
    with joined(rank, world_size, rendezvous, factory, timeout_s=60) as backend:
        assert backend.name == factory.name
        answers = check_sums(backend, rank, world_size, SIZES, device)
        answers += check_fused_norms(backend, rank, world_size, device)
        check_all_gather(backend, rank, world_size, device)
        check_back_to_back(backend, rank, world_size, device, calls)
        check_late_ranks(backend, rank, world_size, device)
        check_refusals(backend, device)
    return zlib.crc32(b"".join(answers))


def check_back_to_back(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device, calls: int) -> None:
    """The host never waits, so a buffer that is overwritten or read too early gives a wrong sum."""
    bases = [make_inputs(world_size, (size,), torch.float32, size, device) for size in MIXED_SIZES]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for call in range(calls):
        inputs = [base + call for base in bases[call % len(bases)]]
        x = inputs[rank].clone()
        if call % 5 == 4:
            wrong += (backend.all_gather(x) != torch.stack(inputs)).sum()
        else:
            wrong += (backend.all_reduce(x) != sum_to_the_bit(backend, inputs)).sum()
    assert int(wrong) == 0


def check_late_ranks(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device) -> None:
    for late in range(world_size):
        if rank == late:
            time.sleep(0.15)
        assert backend.all_reduce(torch.ones(100, device=device))[0] == world_size


def check_refusals(backend: AllReduceBackend, device: torch.device) -> None:
    for bad in (torch.ones(4, dtype=torch.int32, device=device), torch.ones(0, device=device)):
        assert not backend.can_run(bad.numel(), bad.dtype).ok
        with pytest.raises(UnsupportedError):
            backend.all_reduce(bad)
