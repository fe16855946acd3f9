import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.tuning.acceptance import Acceptance, longest_chain
from tests.tuning.machine import Machine

survivals = st.lists(st.floats(0, 1), min_size=1, max_size=8).map(lambda values: tuple(sorted(values, reverse=True)))


@given(survival=survivals, num_passes=st.integers(1, 10_000))
def test_every_shorter_chain_follows_from_one_run(survival: tuple[float, ...], num_passes: int) -> None:
    acceptance = Acceptance(survival, num_passes)
    for k in range(1, len(survival) + 1):
        length = acceptance.accept_length(k)
        assert length.mid == pytest.approx(1 + sum(survival[:k]))
        assert length.low >= 1
        assert length.high <= 1 + k


@given(survival=survivals, num_drafts=st.integers(1, 16))
def test_longer_chains_yield_more_but_never_more_than_all(survival: tuple[float, ...], num_drafts: int) -> None:
    acceptance = Acceptance(survival, 100)
    shorter, longer = acceptance.accept_length(num_drafts), acceptance.accept_length(num_drafts + 1)
    assert shorter.mid <= longer.mid <= 2 + num_drafts
    assert acceptance.survival_at(num_drafts + 1).mid == pytest.approx(longer.mid - shorter.mid)


def test_the_last_conditional_acceptance_goes_on() -> None:
    acceptance = Acceptance((0.8, 0.4), 100)
    fourth = acceptance.survival_at(4)
    assert fourth.mid == pytest.approx(0.4 * (0.5 * 0.95) ** 2)
    assert fourth.low < fourth.mid < fourth.high


def test_the_range_narrows_with_the_number_of_passes() -> None:
    few, many = (Acceptance((0.7, 0.5), n).accept_length(2) for n in (25, 2500))
    assert few.high - few.low == pytest.approx(10 * (many.high - many.low))


def test_the_longest_chain_of_any_trial_counts() -> None:
    machine = Machine()
    chains = [machine.measure({"num_draft_steps": k, "num_proposed_drafts": k}) for k in (3, 6, 2)]
    tree = machine.measure({"draft_shape": "tree", "top_k": 2, "num_draft_steps": 8, "num_proposed_drafts": 16})
    assert longest_chain([*chains, tree]) == Acceptance.measured(chains[1])
    assert longest_chain([tree]) is None


def test_positions_that_were_never_right_count_as_zero() -> None:
    measurement = Machine().measure()
    arm = measurement.arms["speculative"].model_copy(update={"correct_drafts_per_position": (0.5,)})
    short = measurement.model_copy(update={"arms": measurement.arms | {"speculative": arm}})
    assert Acceptance.measured(short).survival == (0.5, 0.0, 0.0)
