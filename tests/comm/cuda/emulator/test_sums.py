"""The package's collectives on a CPU: right under every schedule that was tried, wrong when a mistake is made."""

import random
from itertools import product

import pytest
import torch

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol
from tests.comm.cuda.emulator.emulator import Edit, Emulator, EmulatorError
from tests.comm.cuda.emulator.ranks import EmulatedRanks

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_BYTES = 4096

MISTAKES = {
    "one slot": (list(Protocol), Edit("call.cuh", "epoch & 1u", "epoch & 0u")),
    "nothing is emptied": (
        [Protocol.SENTINEL],
        Edit("inbox.cuh", "{ store_line(address, nothing()); }", "{}"),
    ),
    "an epoch that stands still": (
        [Protocol.LINES, Protocol.FLAGS],
        Edit("call.cuh", "control->epoch = epoch_after(turn.epoch);", ""),
    ),
    "a flag without release": (
        [Protocol.FLAGS],
        Edit(
            "inbox.cuh",
            "store_release(channel.flag(reader, channel.own, batch, num_batches), channel.epoch);",
            "emulator::store(channel.flag(reader, channel.own, batch, num_batches), &channel.epoch, 4);",
        ),
    ),
    "a flag before the block is done": (
        [Protocol.FLAGS],
        Edit(
            "inbox.cuh",
            "    __syncthreads();\n    const u32 reader = threadIdx.x;",
            "    const u32 reader = threadIdx.x;",
        ),
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


def random_speeds(world_size: int, schedule: random.Random) -> list[int]:
    return [schedule.choice([1, 4, 40]) for _ in range(world_size)]


def random_size(schedule: random.Random, max_bytes: int, dtype: torch.dtype) -> int:
    return schedule.choice([1, 3, 8, 257, schedule.randint(1, max_bytes // dtype.itemsize)])


def run_calls(
    ranks: EmulatedRanks,
    kinds: list[tuple[Algorithm, Protocol]],
    dtype: torch.dtype,
    schedule: random.Random,
    max_bytes: int = MAX_BYTES,
    max_steps: int = 5_000_000,
) -> None:
    """A few calls in a row, of random sizes and grids, in place or not, back to back; then every output is compared."""
    calls = []
    for _ in range(6):
        algorithm, protocol = schedule.choice(kinds)
        launch = Launch(protocol, schedule.randint(1, 3), schedule.choice([32, 64]), algorithm=algorithm)
        limit = min(max_bytes, ranks.layout.largest_message(algorithm, protocol))
        inputs = make_inputs(ranks.world_size, random_size(schedule, limit, dtype), dtype, schedule.getrandbits(32))
        calls.append((inputs, ranks.all_reduce(inputs, launch, in_place=schedule.random() < 0.5)))
    ranks.run(max_steps)
    for inputs, outputs in calls:
        expected = add_in_rank_order(inputs)
        for rank, output in enumerate(outputs):
            assert torch.equal(output, expected), f"rank {rank} has another sum of {list(output.shape)}"


ONE_SHOT = [(Algorithm.ONE_SHOT, protocol) for protocol in Protocol]


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_of_mixed_sizes_and_protocols(emulator: Emulator, dtype: torch.dtype) -> None:
    for seed in range(8):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(emulator, random_speeds(2, schedule), seed, max_bytes=MAX_BYTES)
        run_calls(ranks, ONE_SHOT, dtype, schedule)


@pytest.mark.parametrize(("world_size", "has_outboxes"), [(2, True), (3, False), (4, False), (4, True)])
def test_all_algorithms_on_one_workspace(emulator: Emulator, world_size: int, has_outboxes: bool) -> None:
    for seed in range(3):
        schedule = random.Random(seed)
        speeds = random_speeds(world_size, schedule)
        ranks = EmulatedRanks(emulator, speeds, seed, max_bytes=MAX_BYTES, has_outboxes=has_outboxes)
        kinds = [(algorithm, protocol) for protocol in Protocol for algorithm in ranks.layout.algorithms(protocol)]
        run_calls(ranks, kinds, torch.bfloat16, schedule, max_bytes=1500)


@pytest.mark.parametrize(("has_outboxes", "protocol"), list(product([False, True], [Protocol.LINES, Protocol.FLAGS])))
def test_gathers(emulator: Emulator, has_outboxes: bool, protocol: Protocol) -> None:
    for seed in range(3):
        schedule = random.Random(seed)
        speeds = random_speeds(3, schedule)
        ranks = EmulatedRanks(emulator, speeds, seed, max_bytes=MAX_BYTES, has_outboxes=has_outboxes)
        calls = []
        for _ in range(4):
            size = random_size(schedule, 1500, torch.bfloat16)
            inputs = make_inputs(3, size, torch.bfloat16, schedule.getrandbits(32))
            calls.append((inputs, ranks.all_gather(inputs, Launch(protocol, schedule.randint(1, 3), 32))))
        ranks.run()
        for inputs, outputs in calls:
            for output in outputs:
                assert torch.equal(output, torch.stack(inputs))


@pytest.mark.parametrize("protocol", list(Protocol))
def test_epochs_wrap(emulator: Emulator, protocol: Protocol) -> None:
    for first_epoch in (2**32 - 3, 2**32 - 2):
        schedule = random.Random(first_epoch)
        ranks = EmulatedRanks(emulator, [1, 10], 0, max_bytes=MAX_BYTES, first_epoch=first_epoch)
        run_calls(ranks, [(Algorithm.ONE_SHOT, protocol)], torch.bfloat16, schedule)
        # Six calls; after the last number follows 2.
        assert {control.epoch for control in ranks.controls} == {first_epoch + 8 - 2**32}


@pytest.mark.parametrize(
    ("mistake", "protocol"), [(name, protocol) for name, (protocols, _) in MISTAKES.items() for protocol in protocols]
)
def test_a_mistake_is_found(emulator: Emulator, mistake: str, protocol: Protocol) -> None:
    edits = (MISTAKES[mistake][1],)
    for seed in range(30):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(emulator, random_speeds(2, schedule), seed, max_bytes=MAX_BYTES, edits=edits)
        try:
            run_calls(ranks, [(Algorithm.ONE_SHOT, protocol)], torch.bfloat16, schedule, max_steps=300_000)
        except AssertionError:
            return
    pytest.fail("thirty schedules were right in spite of it")


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_kernel_gives_up_on_a_rank_that_never_calls(emulator: Emulator, protocol: Protocol) -> None:
    ranks = EmulatedRanks(emulator, [1, 1], 0, absent=[1], spin_bound=300_000)
    ranks.all_reduce(make_inputs(2, 64, torch.bfloat16, 0), Launch(protocol, 1, 32))
    ranks.run()
    status = ranks.statuses[0]
    assert (status.code, status.peer, status.epoch) == (1, 1, 1)


def test_a_kernel_leaves_when_the_host_says_so(emulator: Emulator) -> None:
    ranks = EmulatedRanks(emulator, [1, 1], 0, absent=[0])
    ranks.statuses[1].abort = 1
    ranks.all_reduce(make_inputs(2, 64, torch.bfloat16, 0), Launch(Protocol.LINES, 1, 32))
    ranks.run()
    assert (ranks.statuses[1].code, ranks.statuses[1].peer) == (2, 0)


def test_a_rank_that_never_calls_is_a_report_of_who_waits(emulator: Emulator) -> None:
    ranks = EmulatedRanks(emulator, [1, 1], 0, absent=[1])
    ranks.all_reduce(make_inputs(2, 8, torch.bfloat16, 0), Launch(Protocol.LINES, 1, 32))
    with pytest.raises(EmulatorError, match=r"(?s)no end in sight.*lines of rank 0, block 0, thread 0: load at byte"):
        ranks.run(max_steps=20_000)


def test_a_store_beyond_the_inbox_is_found(emulator: Emulator) -> None:
    edit = Edit("inbox.cuh", "+ area + place * LINE_BYTES", "+ area + (place << 30)")
    ranks = EmulatedRanks(emulator, [1, 1], 0, edits=(edit,))
    ranks.all_reduce(make_inputs(2, 8, torch.bfloat16, 0), Launch(Protocol.LINES, 1, 32))
    with pytest.raises(EmulatorError, match="outside inbox memory: fastverify_all_reduce_lines of rank"):
        ranks.run()
