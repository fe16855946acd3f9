"""The protocols on the model of their memory: right sums under every schedule, and wrong ones when broken."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comm.cuda.protocol_model import Call, ProtocolModel, Rules, StuckError, WrongDataError

PROTOCOLS = ("lines", "sentinel", "flags")
OUTBOX_PROTOCOLS = ("lines", "flags")
ALGORITHMS = ("one_shot", "two_shot")
EPOCHS = st.sampled_from([1, 2, 2**32 - 4, 2**32 - 1])
units = st.integers(1, 5)
inbox_calls = st.builds(Call, st.sampled_from(PROTOCOLS), units, st.sampled_from(ALGORITHMS))
outbox_calls = st.builds(Call, st.sampled_from(OUTBOX_PROTOCOLS), units, st.sampled_from(ALGORITHMS), st.just(True))
island_calls = st.builds(Call, st.sampled_from(PROTOCOLS[:2]), units, st.just("islands"))
weights = st.lists(st.integers(0, 3), min_size=2, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    calls=st.lists(st.one_of(inbox_calls, outbox_calls), min_size=1, max_size=8),
    weights=weights,
    seed=st.integers(0, 2**32),
    first_epoch=EPOCHS,
)
def test_every_rank_reads_the_data_of_its_call(
    calls: list[Call], weights: list[int], seed: int, first_epoch: int
) -> None:
    model = ProtocolModel(calls, weights, Rules(), random.Random(seed), first_epoch)
    model.run()
    sums_of = {"one_shot": len(weights), "two_shot": 1}
    assert model.num_sums == sum(call.num_units * sums_of[call.algorithm] for call in calls)


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(st.one_of(island_calls, inbox_calls), min_size=1, max_size=6),
    weights=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    seed=st.integers(0, 2**32),
    first_epoch=EPOCHS,
)
def test_islands_among_other_calls(calls: list[Call], weights: list[int], seed: int, first_epoch: int) -> None:
    ProtocolModel(calls, weights, Rules(), random.Random(seed), first_epoch).run()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_slot_is_not_enough(protocol: str) -> None:
    assert breaks(Rules(num_slots=1), [Call(protocol, size) for size in (3, 1, 3, 2, 3)])


@pytest.mark.parametrize("protocol", OUTBOX_PROTOCOLS)
def test_one_slot_of_an_outbox_is_not_enough(protocol: str) -> None:
    assert breaks(Rules(num_slots=1), [Call(protocol, size, has_outboxes=True) for size in (3, 1, 3, 2, 3)])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_slot_is_not_enough_where_two_shot_follows_one_shot(protocol: str) -> None:
    calls = [Call(protocol, 3, algorithm) for algorithm in ("two_shot", "one_shot", "two_shot", "one_shot")]
    assert breaks(Rules(num_slots=1), calls)


@pytest.mark.parametrize("protocol", PROTOCOLS[:2])
def test_one_slot_between_islands_is_not_enough(protocol: str) -> None:
    assert breaks(Rules(num_slots=1), [Call(protocol, 2, "islands")] * 4, num_ranks=4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inputs_and_sums_in_one_region_are_mixed_up(protocol: str) -> None:
    assert breaks(Rules(regions_per_phase=False), [Call(protocol, 3, "two_shot")] * 2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_sentinel_must_be_emptied(algorithm: str) -> None:
    assert breaks(Rules(readers_empty=False), [Call("sentinel", 1, algorithm)] * 4)


def test_an_epoch_that_small_calls_do_not_move_is_not_enough() -> None:
    assert breaks(Rules(epoch_per_call=False), [Call("lines", size) for size in (1, 1, 2)])


def breaks(rules: Rules, calls: list[Call], num_ranks: int = 3) -> bool:
    """Whether any of a few hundred schedules goes wrong."""
    weights = [1] * (num_ranks - 1) + [0]
    for seed in range(300):
        try:
            ProtocolModel(calls, weights, rules, random.Random(seed), first_epoch=1).run()
        except (WrongDataError, StuckError):
            return True
    return False
