"""Other people's all-reduces behind our contract: right sums where they say they can, eager and in a graph.

From three ranks on each of them adds in an order of its own and may round after every addition, so there the bound has
one rounding per addition; with two ranks a sum has one value.
"""

from __future__ import annotations

import time
import zlib

import pytest
import torch

from fastverify.comm.accuracy import (
    SMALLEST_STEP,
    UNIT_ROUNDOFF,
    add_exactly,
    is_within,
    norm_error_bound,
    norm_exactly,
)
from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.gpu.timing import capture, timing_stream
from fastverify.errors import EnvironmentMissingError, UnsupportedError
from tests.comm.on_gpus.gpu_ranks import GPU_MARKS, PEERS, TIMEOUT_S, GpuFactory, gpu_group, require
from tests.contracts.all_reduce_contract import DTYPES, digest, make_inputs, sum_in_rank_order
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
SIZES = (1, 17, 1000, 4096, 7168, 28_672, 114_688, 458_752)
ROWS = ((1, 4096), (4, 7168), (64, 4096))
REPLAYS = 500
NUM_BANKS = 7


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_sums(name: str, world_size: int) -> None:
    answers = run_ranks(check_peer, world_size, require(name, world_size), timeout_s=TIMEOUT_S)
    reasons = [answer for answer in answers if isinstance(answer, str)]
    if reasons:
        pytest.skip(reasons[0])
    assert all(answer == answers[0] for answer in answers), "ranks hold different bits"


def check_peer(rank: int, world_size: int, rendezvous: str, factory: GpuFactory) -> int | str:
    """A digest of the answers, or why the library could not be set up."""
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.cuda.stream(timing_stream(group.device)):
        try:
            backend = factory(group)
        except (EnvironmentMissingError, UnsupportedError) as error:
            return str(error)
        answers = check_sums(backend, rank, world_size, group.device)
        check_norms(backend, rank, world_size, group.device)
        check_late_ranks(backend, rank, world_size, group.device)
        check_graph(backend, rank, world_size, group.device)
        torch.cuda.synchronize(group.device)
        backend.close()
    return zlib.crc32(b"".join(answers))


def is_right(x: torch.Tensor, inputs: list[torch.Tensor]) -> bool:
    if len(inputs) == 2:
        return torch.equal(x, sum_in_rank_order(inputs))
    roundings = (len(inputs) - 1) * UNIT_ROUNDOFF[x.dtype] * 1.01
    bound = roundings * add_exactly([part.abs() for part in inputs]) + len(inputs) * SMALLEST_STEP[x.dtype]
    return is_within(x, add_exactly(inputs), bound)


def check_sums(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device) -> list[bytes]:
    answers = []
    for dtype in DTYPES:
        for size in SIZES:
            support = backend.can_run(size, dtype)
            if not support.ok:
                assert support.reason
                continue
            inputs = make_inputs(world_size, (size,), dtype, size, device)
            x = inputs[rank].clone()
            assert backend.all_reduce(x) is x
            assert is_right(x, inputs), (backend.name, dtype, size)
            answers.append(digest(x))
    assert answers, "it can sum none of the sizes"
    return answers


def check_norms(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device) -> None:
    """The norm is defined on the residual as it was rounded, so it can be checked whatever came before."""
    for shape in ROWS:
        if not backend.can_run(shape[0] * shape[1], torch.bfloat16).ok:
            continue
        inputs = make_inputs(world_size, shape, torch.bfloat16, 11, device)
        before, weights = make_inputs(2, shape, torch.bfloat16, 77, device)
        residual = before.clone()
        normed = backend.all_reduce_residual_rmsnorm(inputs[rank].clone(), residual, weights[0], 1e-5)
        roundings = (world_size + 1) * UNIT_ROUNDOFF[torch.bfloat16] * 1.01
        bound = roundings * add_exactly([part.abs() for part in (before, *inputs)])
        assert is_within(residual, add_exactly([before, *inputs]), bound), (backend.name, shape)
        exact, norm_bound = (f(residual, weights[0], 1e-5) for f in (norm_exactly, norm_error_bound))
        assert is_within(normed, exact, norm_bound), (backend.name, shape)


def check_late_ranks(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device) -> None:
    for late in range(world_size):
        if rank == late:
            time.sleep(0.15)
        assert backend.all_reduce(torch.ones(4096, dtype=torch.bfloat16, device=device))[0] == world_size


def check_graph(backend: AllReduceBackend, rank: int, world_size: int, device: torch.device) -> None:
    """Replays give the bits of eager calls."""
    sizes = [size for size in (4096, 28_672, 114_688) if backend.can_run(size, torch.bfloat16).ok]
    banks = [
        [make_inputs(world_size, (size,), torch.bfloat16, seed, device)[rank] for size in sizes]
        for seed in range(NUM_BANKS)
    ]
    expected = [[backend.all_reduce(x.clone()) for x in bank] for bank in banks]
    work = [torch.empty_like(x) for x in banks[0]]

    def run() -> None:
        for x in work:
            backend.all_reduce(x)

    def write(replay: int) -> None:
        for x, value in zip(work, banks[replay % NUM_BANKS], strict=True):
            x.copy_(value)

    write(0)
    run()
    graph = capture(run, 1)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for replay in range(REPLAYS):
        write(replay)
        graph.replay()
        for x, right in zip(work, expected[replay % NUM_BANKS], strict=True):
            wrong += (x != right).sum()
    assert int(wrong) == 0
