"""The fused kernel on a CPU: residuals bit by bit, norms within their bound, for clusters, several rows and a bias."""

import random

import pytest
import torch

from fastverify.comm.accuracy import is_within, norm_error_bound, norm_exactly
from fastverify.comm.cuda.launch import Launch, Protocol, fused_launch
from tests.comm.cuda.emulator.emulator import Edit, Emulator
from tests.comm.cuda.emulator.ranks import EmulatedRanks

EPS = 1e-5
MAX_BYTES = 16_384

MISTAKES = {
    "one set of parts": Edit("row_total.cuh", "    ++round;", "    round += 2;"),
    "no wait for the other blocks": Edit("fused.cuh", "      row_total.meet();\n", ""),
    "a mailbox that expects too little": Edit("row_total.cuh", "CLUSTER * num_warps * sizeof(float)", "sizeof(float)"),
}


def run_rows(ranks: EmulatedRanks, launches: list[tuple[Launch, int]], hidden: int, dtype: torch.dtype) -> None:
    """One call after another, every second one with a bias; then residuals and norms are compared."""
    weight, bias = torch.randn(hidden).to(dtype), torch.randn(hidden).to(dtype)
    calls = []
    for index, (launch, num_rows) in enumerate(launches):
        inputs = [torch.randn(num_rows, hidden).to(dtype) * 4.0**rank for rank in range(ranks.world_size)]
        residual = torch.randn(num_rows, hidden).to(dtype)
        residuals = [residual.clone() for _ in inputs]
        own_bias = bias if index % 2 else None
        outputs = ranks.all_reduce_residual_rmsnorm(inputs, residuals, weight, EPS, launch, own_bias)
        calls.append((inputs, residual, own_bias, residuals, outputs))
    ranks.run(2_000_000)
    for inputs, residual, own_bias, residuals, outputs in calls:
        expected = add_in_order([*inputs, *([] if own_bias is None else [own_bias]), residual])
        norm, bound = norm_exactly(expected, weight, EPS), norm_error_bound(expected, weight, EPS)
        assert all(torch.equal(new, expected) for new in residuals)
        assert is_within(outputs[0], norm, bound)
        assert all(torch.equal(output, outputs[0]) for output in outputs)


def add_in_order(terms: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(terms[-1].shape)
    for term in terms:
        total += term.float()
    return total.to(terms[-1].dtype)


def random_launches(
    row_bytes: int, cluster: int, protocols: list[Protocol], schedule: random.Random
) -> list[tuple[Launch, int]]:
    """Different numbers of rows, some with several for a cluster, and one launch with clusters that have none."""
    launches = []
    for num_rows in (1, 3, 2, 5):
        protocol = schedule.choice(protocols)
        launches.append(
            (fused_launch(protocol, num_rows, row_bytes, cluster=cluster, max_blocks=2 * cluster), num_rows)
        )
    last = launches[-1][0]
    return [*launches, (Launch(last.protocol, 3 * cluster, last.threads, last.units, cluster=cluster), 1)]


@pytest.mark.parametrize(
    ("dtype", "cluster", "world_size", "has_outboxes"),
    [
        (torch.bfloat16, 1, 2, False),
        (torch.float16, 2, 2, False),
        (torch.float32, 4, 2, False),
        (torch.bfloat16, 4, 3, False),
        (torch.bfloat16, 2, 3, True),
    ],
)
def test_rows(emulator: Emulator, dtype: torch.dtype, cluster: int, world_size: int, has_outboxes: bool) -> None:
    hidden = 328 if cluster == 1 else 256
    for seed in range(2):
        schedule = random.Random(seed)
        torch.manual_seed(seed)
        speeds = [schedule.choice([1, 4, 40]) for _ in range(world_size)]
        ranks = EmulatedRanks(emulator, speeds, seed, max_bytes=MAX_BYTES, has_outboxes=has_outboxes)
        protocols = [Protocol.LINES, Protocol.SENTINEL]
        run_rows(ranks, random_launches(hidden * dtype.itemsize, cluster, protocols, schedule), hidden, dtype)


def test_several_units_per_thread(emulator: Emulator) -> None:
    torch.manual_seed(0)
    ranks = EmulatedRanks(emulator, [1, 3], 0, max_bytes=MAX_BYTES)
    launches = [
        (Launch(Protocol.SENTINEL, 4, 32, units=2, cluster=2), 3),
        (Launch(Protocol.LINES, 2, 64, units=2, cluster=2), 2),
    ]
    run_rows(ranks, launches, 904, torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "cluster"), [(torch.bfloat16, 1), (torch.bfloat16, 4), (torch.float16, 2), (torch.float32, 2)]
)
def test_norms_in_eight_bits(emulator: Emulator, dtype: torch.dtype, cluster: int) -> None:
    """The last row is all zeros, which has no scale."""
    hidden, schedule = 256, random.Random(0)
    torch.manual_seed(0)
    ranks = EmulatedRanks(emulator, [1, 4], 0, max_bytes=MAX_BYTES)
    protocols = [Protocol.LINES, Protocol.SENTINEL]
    weight, calls = torch.randn(hidden).to(dtype), []
    for launch, num_rows in random_launches(hidden * dtype.itemsize, cluster, protocols, schedule):
        inputs = [torch.randn(num_rows, hidden).to(dtype) for _ in range(2)]
        residual = torch.randn(num_rows, hidden).to(dtype)
        for x in (*inputs, residual):
            x[-1] = 0
        residuals = [residual.clone() for _ in inputs]
        outputs = ranks.all_reduce_residual_rmsnorm_fp8(inputs, residuals, weight, EPS, launch)
        calls.append((add_in_order([*inputs, residual]), residuals, outputs))
    ranks.run(2_000_000)
    for expected, residuals, outputs in calls:
        norm, bound = norm_exactly(expected, weight, EPS), norm_error_bound(expected, weight, EPS)
        quantised, scales = outputs[0]
        assert all(torch.equal(new, expected) for new in residuals)
        assert is_within(scales, norm.abs().amax(-1) / 448, bound.amax(-1) / 448 + 2e-7 * scales)
        assert is_within(quantised.double() * scales[:, None], norm, bound + quantisation_error(norm, scales))
        assert torch.equal(quantised.view(torch.uint8), outputs[1][0].view(torch.uint8))
        assert torch.equal(scales, outputs[1][1])


def quantisation_error(norm: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Half a step: three bits of fraction, steps of 2^-9 for the smallest; some float32 roundings come before."""
    return norm.abs() * 2.0**-4 * 1.001 + scales[:, None] * 2.0**-10


@pytest.mark.parametrize(
    ("mistake", "cluster"),
    [
        ("one set of parts", 2),
        ("no wait for the other blocks", 2),
        ("a mailbox that expects too little", 2),
    ],
)
def test_a_mistake_is_found(emulator: Emulator, mistake: str, cluster: int) -> None:
    for seed in range(20):
        schedule = random.Random(seed)
        torch.manual_seed(seed)
        ranks = EmulatedRanks(emulator, [1, 4], seed, max_bytes=MAX_BYTES, edits=(MISTAKES[mistake],))
        try:
            run_rows(ranks, random_launches(2048, cluster, [Protocol.SENTINEL], schedule), 1024, torch.bfloat16)
        except AssertionError:
            return
    pytest.fail("twenty schedules were right in spite of it")
