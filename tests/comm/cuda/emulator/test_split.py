"""Blocks that only send beside blocks that only sum, on the emulated machine: in place too, and wrong when broken."""

import random
from itertools import product

import pytest
import torch

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol
from tests.comm.cuda.emulator.emulator import Edit, Emulator
from tests.comm.cuda.emulator.ranks import EmulatedRanks
from tests.comm.cuda.emulator.test_sums import add_in_rank_order, make_inputs, random_size, random_speeds

SPLIT = "all_reduce_split.cu"
MAX_BYTES = 4096
NUM_CALLS = 6

MISTAKES = {
    "no wait for the own sender": Edit(
        SPLIT, "if (source < C::SIZE) {", "if (source < C::SIZE && source != channel.own) {"
    ),
    "a flag before the block is done": Edit(SPLIT, "  __syncthreads();\n  const u32 reader", "  const u32 reader"),
    "a flag without release": Edit(
        SPLIT,
        "store_release(channel.flag(reader, channel.own, batch, num_batches), channel.epoch);",
        "emulator::store(channel.flag(reader, channel.own, batch, num_batches), &channel.epoch, 4);",
    ),
    "threads that do not wait for the flags": Edit(
        SPLIT, "__syncthreads_or(turn.has_given_up) != 0;", "turn.has_given_up;"
    ),
    "one slot": Edit("call.cuh", "epoch & 1u", "epoch & 0u"),
}


def random_launch(schedule: random.Random, kinds: list[tuple[Algorithm, Protocol]]) -> Launch:
    """Split for about half of the calls."""
    threads = schedule.choice([32, 64])
    if schedule.random() < 0.5:
        senders, readers, units = schedule.randint(1, 3), schedule.randint(1, 3), schedule.choice([1, 2])
        return Launch(Protocol.FLAGS, senders + readers, threads, units, senders=senders)
    algorithm, protocol = schedule.choice(kinds)
    return Launch(protocol, schedule.randint(1, 3), threads, algorithm=algorithm)


def run_calls(
    ranks: EmulatedRanks,
    kinds: list[tuple[Algorithm, Protocol]],
    dtype: torch.dtype,
    schedule: random.Random,
    max_steps: int = 20_000_000,
) -> None:
    """Calls back to back, in place or not; every output of every rank is compared."""
    calls = []
    for _ in range(NUM_CALLS):
        launch = random_launch(schedule, kinds)
        limit = min(MAX_BYTES, ranks.layout.largest_message(launch.algorithm, launch.protocol))
        inputs = make_inputs(ranks.world_size, random_size(schedule, limit, dtype), dtype, schedule.getrandbits(32))
        calls.append((inputs, ranks.all_reduce(inputs, launch, in_place=schedule.random() < 0.7)))
    ranks.run(max_steps)
    for inputs, outputs in calls:
        expected = add_in_rank_order(inputs)
        for rank, output in enumerate(outputs):
            assert torch.equal(output, expected), f"rank {rank} has another sum of {list(output.shape)}"


@pytest.mark.parametrize(
    ("world_size", "has_outboxes", "dtype"),
    [
        (2, False, torch.bfloat16),
        (2, False, torch.float32),
        (2, True, torch.float16),
        (3, True, torch.bfloat16),
        (4, False, torch.bfloat16),
    ],
)
def test_split_calls_among_others(emulator: Emulator, world_size: int, has_outboxes: bool, dtype: torch.dtype) -> None:
    for seed in range(4):
        schedule = random.Random(seed)
        speeds = random_speeds(world_size, schedule)
        ranks = EmulatedRanks(emulator, speeds, seed, max_bytes=MAX_BYTES, has_outboxes=has_outboxes)
        kinds = list(product([Algorithm.ONE_SHOT, Algorithm.TWO_SHOT], Protocol))
        run_calls(ranks, kinds, dtype, schedule)


@pytest.mark.parametrize(("mistake", "has_outboxes"), list(product(MISTAKES, [False, True])))
def test_a_mistake_is_found(emulator: Emulator, mistake: str, has_outboxes: bool) -> None:
    for seed in range(30):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(
            emulator,
            random_speeds(2, schedule),
            seed,
            max_bytes=MAX_BYTES,
            has_outboxes=has_outboxes,
            edits=(MISTAKES[mistake],),
        )
        try:
            run_calls(ranks, [(Algorithm.ONE_SHOT, Protocol.FLAGS)], torch.bfloat16, schedule, max_steps=400_000)
        except AssertionError:
            return
    pytest.fail("thirty schedules were right in spite of it")


def run_aborted_calls(emulator: Emulator, edits: tuple[Edit, ...]) -> tuple[int, int]:
    """One call in place under each of 20 schedules; rank 0 is told to leave as soon as it asks.

    In how many it left, and in how many of these rank 1 holds the sum all the same, since rank 0 had sent its input.
    """
    num_left = num_sums = 0
    for seed in range(20):
        ranks = EmulatedRanks(emulator, [40, 1], seed, max_bytes=MAX_BYTES, edits=edits)
        ranks.statuses[0].abort = 1
        inputs = make_inputs(2, 1024, torch.bfloat16, seed)
        outputs = ranks.all_reduce(inputs, Launch(Protocol.FLAGS, 4, 32, senders=2), in_place=True)
        ranks.run(20_000_000)
        has_left = ranks.statuses[0].code == 2
        num_left += has_left
        num_sums += has_left and torch.equal(outputs[1], add_in_rank_order(inputs))
    return num_left, num_sums


def test_a_rank_that_leaves_has_sent_what_it_held(emulator: Emulator) -> None:
    num_left, num_sums = run_aborted_calls(emulator, ())
    assert num_left > 5
    assert num_sums == num_left


def test_a_rank_that_leaves_but_writes_would_send_what_it_wrote(emulator: Emulator) -> None:
    edit = Edit(
        SPLIT,
        "if (!await_all(channel, turn, batch, num_batches)) return;",
        "await_all(channel, turn, batch, num_batches);",
    )
    num_left, num_sums = run_aborted_calls(emulator, (edit,))
    assert num_sums < num_left


def test_a_rank_that_waits_in_vain_keeps_its_input(emulator: Emulator) -> None:
    ranks = EmulatedRanks(emulator, [1, 1], 0, absent=[1], spin_bound=300_000)
    inputs = make_inputs(2, 1000, torch.bfloat16, 0)
    outputs = ranks.all_reduce(inputs, Launch(Protocol.FLAGS, 4, 32, senders=2), in_place=True)
    ranks.run()
    assert (ranks.statuses[0].code, ranks.statuses[0].peer, ranks.statuses[0].epoch) == (1, 1, 1)
    assert torch.equal(outputs[0], inputs[0])
