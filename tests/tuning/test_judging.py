import pytest

from fastverify.tuning.judging import decide
from fastverify.tuning.trial import MeasuredEffect


def effect(speedup: float) -> MeasuredEffect:
    return MeasuredEffect(speedup=speedup, plain_speedup=1.0, tok_s=100.0, plain_tok_s=50.0, accept_length=2.0)


@pytest.mark.parametrize(
    ("speedup", "noise", "simpler", "outcome", "kept"),
    [
        (1.20, 0.05, False, "ok", True),
        (1.04, 0.05, False, "ok", False),
        (1.04, 0.05, True, "ok", True),
        (0.98, 0.05, True, "ok", True),
        (0.90, 0.05, True, "slower", False),
        # A restless machine: its noise must not let simplicity give away a third of the speed.
        (0.67, 0.60, True, "ok", False),
        (0.96, 0.60, True, "ok", False),
    ],
)
def test_decide(speedup: float, noise: float, simpler: bool, outcome: str, kept: bool) -> None:
    assert decide(effect(speedup), noise, simpler=simpler)[:2] == (outcome, kept)
