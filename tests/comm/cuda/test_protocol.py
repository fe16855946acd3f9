"""The protocol of inbox.cuh on the model of its memory: right sums under every schedule, and wrong ones when broken."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comm.cuda.protocol_model import Call, ProtocolModel, Rules, StuckError, WrongDataError

PROTOCOLS = ("lines", "sentinel", "flags")
calls = st.lists(st.builds(Call, st.sampled_from(PROTOCOLS), st.integers(1, 4)), min_size=1, max_size=8)
weights = st.lists(st.integers(0, 3), min_size=2, max_size=4)
EPOCHS = st.sampled_from([1, 2, 2**32 - 4, 2**32 - 1])


@settings(max_examples=150, deadline=None)
@given(calls=calls, weights=weights, seed=st.integers(0, 2**32), first_epoch=EPOCHS)
def test_every_rank_reads_the_data_of_its_call(
    calls: list[Call], weights: list[int], seed: int, first_epoch: int
) -> None:
    model = ProtocolModel(calls, weights, Rules(), random.Random(seed), first_epoch)
    model.run()
    assert model.num_sums == len(weights) * sum(call.num_units for call in calls)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_slot_is_not_enough(protocol: str) -> None:
    assert breaks(Rules(num_slots=1), [Call(protocol, size) for size in (3, 1, 3, 2, 3)])


def test_a_sentinel_must_be_emptied() -> None:
    assert breaks(Rules(readers_empty=False), [Call("sentinel", 1)] * 4)


def test_an_epoch_that_small_calls_do_not_move_is_not_enough() -> None:
    assert breaks(Rules(epoch_per_call=False), [Call("lines", size) for size in (1, 1, 2)])


def breaks(rules: Rules, calls: list[Call]) -> bool:
    """Whether any of a few hundred schedules goes wrong."""
    for seed in range(300):
        try:
            ProtocolModel(calls, [1, 1, 0], rules, random.Random(seed), first_epoch=1).run()
        except (WrongDataError, StuckError):
            return True
    return False
