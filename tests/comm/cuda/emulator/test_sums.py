"""The package's sums run on a CPU: right under every schedule that was tried, and wrong when a mistake is made."""

import random

import pytest
import torch

from fastverify.comm.cuda.launch import Launch, Protocol
from tests.comm.cuda.emulator.emulator import Edit, Emulator, EmulatorError
from tests.comm.cuda.emulator.ranks import EmulatedRanks

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_BYTES = 4096

MISTAKES = {
    "one slot": (list(Protocol), Edit("inbox.cuh", "epoch & 1u", "epoch & 0u")),
    "nothing is emptied": (
        [Protocol.SENTINEL],
        Edit("inbox.cuh", "store_line(address, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));", ""),
    ),
    "an epoch that stands still": (
        [Protocol.LINES, Protocol.FLAGS],
        Edit("inbox.cuh", "= epoch_after(turn.epoch);", "= turn.epoch;"),
    ),
    "a flag without release": (
        [Protocol.FLAGS],
        Edit("all_reduce.cu", "store_release(flag, turn.epoch);", "emulator::store(flag, &turn.epoch, 4);"),
    ),
    "a flag before the block is done": (
        [Protocol.FLAGS],
        Edit("all_reduce.cu", "  __syncthreads();\n  const u32 peer = threadIdx.x;", "  const u32 peer = threadIdx.x;"),
    ),
    "one half of a line looked at": (
        [Protocol.LINES],
        Edit("inbox.cuh", "line.y == epoch && line.w == epoch", "line.y == epoch"),
    ),
}


def make_inputs(world_size: int, size: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Terms of very different size, so that another order of adding gives other bits."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, generator=generator) * 4.0 ** (rank % 3)).to(dtype) for rank in range(world_size)]


def add_in_rank_order(inputs: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(inputs[0].shape)
    for x in inputs:
        total += x.float()
    return total.to(inputs[0].dtype)


def run_calls(ranks: EmulatedRanks, protocols: list[Protocol], dtype: torch.dtype, schedule: random.Random) -> None:
    """A few calls in a row, of random sizes and grids, without a rest between them; then every output is compared."""
    calls = []
    for _ in range(6):
        launch = Launch(schedule.choice(protocols), schedule.randint(1, 3), schedule.choice([32, 64]))
        size = schedule.choice([1, 3, 8, 257, schedule.randint(1, MAX_BYTES // dtype.itemsize)])
        inputs = make_inputs(ranks.world_size, size, dtype, schedule.getrandbits(32))
        calls.append((inputs, ranks.all_reduce(inputs, launch)))
    ranks.run()
    for inputs, outputs in calls:
        expected = add_in_rank_order(inputs)
        for rank, output in enumerate(outputs):
            assert torch.equal(output, expected), f"rank {rank} has another sum of {list(output.shape)}"


def random_speeds(world_size: int, schedule: random.Random) -> list[int]:
    return [schedule.choice([1, 4, 40]) for _ in range(world_size)]


@pytest.mark.parametrize(("world_size", "dtype"), [(2, DTYPES[0]), (2, DTYPES[1]), (2, DTYPES[2]), (3, DTYPES[0])])
def test_calls_of_mixed_sizes_and_protocols(emulator: Emulator, world_size: int, dtype: torch.dtype) -> None:
    for seed in range(8):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(emulator, random_speeds(world_size, schedule), seed, max_bytes=MAX_BYTES)
        run_calls(ranks, list(Protocol), dtype, schedule)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_epochs_wrap(emulator: Emulator, protocol: Protocol) -> None:
    for first_epoch in (2**32 - 3, 2**32 - 2):
        schedule = random.Random(first_epoch)
        ranks = EmulatedRanks(emulator, [1, 10], 0, max_bytes=MAX_BYTES, first_epoch=first_epoch)
        run_calls(ranks, [protocol], torch.bfloat16, schedule)


@pytest.mark.parametrize(
    ("mistake", "protocol"), [(name, protocol) for name, (protocols, _) in MISTAKES.items() for protocol in protocols]
)
def test_a_mistake_is_found(emulator: Emulator, mistake: str, protocol: Protocol) -> None:
    edits = (MISTAKES[mistake][1],)
    for seed in range(30):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(emulator, random_speeds(2, schedule), seed, max_bytes=MAX_BYTES, edits=edits)
        try:
            run_calls(ranks, [protocol], torch.bfloat16, schedule)
        except AssertionError:
            return
    pytest.fail("thirty schedules were right in spite of it")


def test_a_rank_that_never_calls_is_a_report_of_who_waits(emulator: Emulator) -> None:
    ranks = EmulatedRanks(emulator, [1, 1], 0, absent=[1])
    ranks.all_reduce(make_inputs(2, 8, torch.bfloat16, 0), Launch(Protocol.LINES, 1, 32))
    with pytest.raises(EmulatorError, match="(?s)no end in sight.*lines of rank 0, block 0, thread 0: load at byte"):
        ranks.run(max_steps=20_000)


def test_a_store_beyond_the_inbox_is_found(emulator: Emulator) -> None:
    edit = Edit("inbox.cuh", "return (turn.slot * WORLD + source) * call.area_bytes;", "return call.area_bytes << 20;")
    ranks = EmulatedRanks(emulator, [1, 1], 0, edits=(edit,))
    ranks.all_reduce(make_inputs(2, 8, torch.bfloat16, 0), Launch(Protocol.LINES, 1, 32))
    with pytest.raises(EmulatorError, match="outside inbox memory: fastverify_all_reduce_lines of rank"):
        ranks.run()
