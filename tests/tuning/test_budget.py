from types import SimpleNamespace

import pytest

from fastverify.servers.measurement import Sample
from fastverify.tuning import budget
from fastverify.tuning.cost_model import CostModel
from fastverify.tuning.trial import TrialResult, TuneOptions
from tests.tuning.machine import Machine


def sample(arm: str, decode_s: float) -> Sample:
    return Sample(
        arm=arm, prompt_id="a", repeat=0, num_tokens=64, token_ids=(), text="", ttft_s=0.0, decode_s=decode_s,
        tok_s=63 / decode_s, timing_source="server", accept_length=None,
    )  # fmt: skip


@pytest.fixture
def base():
    """12 s in all: 4 s to start, 6 s of plain and 2 s of speculative decoding."""
    measurement = Machine().measure()
    arms = {
        arm: one.model_copy(update={"samples": (sample(arm, seconds),)})
        for (arm, one), seconds in zip(measurement.arms.items(), (6.0, 2.0), strict=True)
    }
    measurement = measurement.model_copy(update={"arms": arms, "elapsed_s": 8.0})
    return SimpleNamespace(measurement=measurement, result=TrialResult(measurement=measurement, elapsed_s=12.0))


def test_a_trial_gets_faster_as_its_arms_are_predicted_to(base) -> None:
    model = CostModel(base.measurement, Machine().table())
    predicted = model.predict({"comm_backend": "shm"})
    expected_s = 4.0 + 6.0 / predicted.plain_speedup.mid + 2.0 / predicted.speedup.mid
    assert budget.trial_s(base, predicted, 0.0) == pytest.approx(expected_s)
    assert budget.trial_s(base, model.predict({}), 0.0) == pytest.approx(12.0)
    assert budget.trial_s(base, model.predict({"drafter": "none"}), 0.0) == pytest.approx(10.0), "no speculative arm"


def test_a_pair_serves_one_arm_of_the_baseline(base) -> None:
    assert budget.pair_s(base, best_s=5.0) == pytest.approx(4.0 + 2.0 + 5.0)


def test_what_does_not_fit_says_so() -> None:
    assert budget.shortage(TuneOptions(), 1e9, 1e9, 1e9) is None
    limited = TuneOptions(budget_s=100.0)
    assert budget.shortage(limited, 60.0, 20.0, 20.0) is None
    text = budget.shortage(limited, 60.0, 20.0, 21.0)
    assert text == "time budget of 100 s: 60 s are spent, the next takes 20 s and the confirmation needs 21 s"
