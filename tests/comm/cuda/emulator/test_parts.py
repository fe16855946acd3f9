"""Two-shot, islands and outboxes on the emulated machine: sums to the bit, odd tails, and mistakes of their own."""

import random
from dataclasses import dataclass
from itertools import product

import pytest
import torch

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol
from tests.comm.cuda.emulator.emulator import Edit, Emulator
from tests.comm.cuda.emulator.ranks import EmulatedRanks
from tests.comm.cuda.emulator.test_sums import add_in_rank_order, make_inputs, random_speeds

ONE_SHOT, TWO_SHOT, ISLANDS = Algorithm
# Elements of 2 bytes: parts that are empty, short by one element, whole; several batches per block.
SIZES = (1, 7, 8, 9, 31, 64, 250, 515, 1021)
ONE_SLOT = Edit("call.cuh", "epoch & 1u", "epoch & 0u")


@dataclass(frozen=True)
class Mistake:
    """What is done wrong, and the calls that show it."""

    edit: Edit
    algorithms: tuple[Algorithm, ...]
    protocols: tuple[Protocol, ...] = tuple(Protocol)
    has_outboxes: bool = False


MISTAKES = {
    # Two-shot alone would do with one slot, since parts come back; its memory is that of one-shot, which would not.
    "one slot": Mistake(ONE_SLOT, (ONE_SHOT, TWO_SHOT)),
    "one slot of an outbox": Mistake(
        ONE_SLOT, (ONE_SHOT, TWO_SHOT), (Protocol.LINES, Protocol.FLAGS), has_outboxes=True
    ),
    "one slot between islands": Mistake(ONE_SLOT, (ISLANDS,), (Protocol.LINES, Protocol.SENTINEL)),
    "inputs and sums in one region": Mistake(
        Edit("two_shot.cu", "(call, turn, GATHER)", "(call, turn, FIRST)"), (TWO_SHOT,)
    ),
    "a partial sum that is never emptied": Mistake(
        Edit(
            "inbox.cuh",
            "if (has_member(sources, source)) C::Protocol::recycle",
            "if (C::SIZE > 2) C::Protocol::recycle",
        ),
        (ISLANDS,),
        (Protocol.SENTINEL,),
    ),
    "a word that nobody looks at": Mistake(
        Edit("inbox.cuh", "line.x != EMPTY && line.y != EMPTY && line.z", "line.x != EMPTY && line.z"),
        (TWO_SHOT,),
        (Protocol.SENTINEL,),
    ),
}


def add_by_islands(inputs: list[torch.Tensor]) -> torch.Tensor:
    """(Island A in rank order) + (island B in rank order), in float32."""
    half = len(inputs) // 2
    first, second = torch.zeros(inputs[0].shape), torch.zeros(inputs[0].shape)
    for x in inputs[:half]:
        first += x.float()
    for x in inputs[half:]:
        second += x.float()
    return (first + second).to(inputs[0].dtype)


def run_sizes(
    ranks: EmulatedRanks,
    launches: list[Launch],
    dtype: torch.dtype,
    schedule: random.Random,
    max_steps: int = 20_000_000,
) -> None:
    """Calls back to back, each of another size; every output of every rank is compared."""
    calls = []
    for launch in launches:
        inputs = make_inputs(ranks.world_size, schedule.choice(SIZES), dtype, schedule.getrandbits(32))
        calls.append((launch, inputs, ranks.all_reduce(inputs, launch)))
    ranks.run(max_steps)
    for launch, inputs, outputs in calls:
        expected = (add_by_islands if launch.algorithm is ISLANDS else add_in_rank_order)(inputs)
        for output in outputs:
            assert torch.equal(output, expected), launch


def random_launches(
    kinds: list[tuple[Algorithm, Protocol]], schedule: random.Random, *, units: int = 1, has_scouts: bool = False
) -> list[Launch]:
    return [
        Launch(
            *(protocol, schedule.randint(1, 3), schedule.choice([32, 64]), units),
            pause_ns=schedule.choice([0, 1]),
            algorithm=algorithm,
            has_scouts=has_scouts,
        )
        for algorithm, protocol in (schedule.choice(kinds) for _ in range(5))
    ]


@pytest.mark.parametrize(
    ("world_size", "has_outboxes", "dtype"),
    [(2, False, torch.float32), (3, False, torch.bfloat16), (4, True, torch.float16), (8, False, torch.float32)],
)
def test_parts_with_odd_tails(emulator: Emulator, world_size: int, has_outboxes: bool, dtype: torch.dtype) -> None:
    for seed in range(3):
        schedule = random.Random(seed)
        speeds = random_speeds(world_size, schedule)
        ranks = EmulatedRanks(emulator, speeds, seed, max_bytes=4096, has_outboxes=has_outboxes)
        kinds = [
            (algorithm, protocol)
            for protocol in Protocol
            for algorithm in ranks.layout.algorithms(protocol)
            if algorithm is not Algorithm.ONE_SHOT
        ]
        run_sizes(ranks, random_launches(kinds, schedule), dtype, schedule)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("has_outboxes", [False, True])
def test_scouts_miss_nothing(emulator: Emulator, has_outboxes: bool, units: int) -> None:
    for seed in range(3):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(emulator, random_speeds(4, schedule), seed, max_bytes=4096, has_outboxes=has_outboxes)
        kinds = [(a, p) for p in (Protocol.LINES, Protocol.SENTINEL) for a in ranks.layout.algorithms(p)]
        launches = random_launches(kinds, schedule, units=units, has_scouts=True)
        run_sizes(ranks, launches, torch.bfloat16, schedule)


def test_a_rank_that_never_comes_stops_everyone(emulator: Emulator) -> None:
    """Rank 2 of 4 is absent: what nobody can sum is not passed on, so no rank takes its call for done."""
    for protocol, algorithm in product(Protocol, (TWO_SHOT, ISLANDS)):
        ranks = EmulatedRanks(emulator, [1, 1, 1, 1], 0, max_bytes=4096, absent=[2], spin_bound=300_000)
        if algorithm not in ranks.layout.algorithms(protocol):
            continue
        inputs = make_inputs(4, 250, torch.bfloat16, 0)
        ranks.all_reduce(inputs, Launch(protocol, 1, 32, algorithm=algorithm))
        ranks.run(max_steps=50_000_000)
        assert [status.code for status in ranks.statuses] == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("name", "protocol"), [(name, protocol) for name, mistake in MISTAKES.items() for protocol in mistake.protocols]
)
def test_a_mistake_is_found(emulator: Emulator, name: str, protocol: Protocol) -> None:
    mistake = MISTAKES[name]
    world_size = 4 if ISLANDS in mistake.algorithms else 3
    kinds = [(algorithm, protocol) for algorithm in mistake.algorithms]
    for seed in range(40):
        schedule = random.Random(seed)
        ranks = EmulatedRanks(
            emulator,
            random_speeds(world_size, schedule),
            seed,
            max_bytes=4096,
            has_outboxes=mistake.has_outboxes,
            edits=(mistake.edit,),
        )
        try:
            run_sizes(ranks, random_launches(kinds, schedule), torch.bfloat16, schedule, max_steps=1_000_000)
        except AssertionError:
            return
    pytest.fail("forty schedules were right in spite of it")
