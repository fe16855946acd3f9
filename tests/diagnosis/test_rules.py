import pytest

from fastverify.diagnosis.degenerate import bigram_ratio
from fastverify.diagnosis.diagnose import diagnose
from fastverify.diagnosis.evidence import UNKNOWN
from fastverify.errors import ConfigError


def fired(diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def test_communication_bound_server(measurement) -> None:
    diagnosis = diagnose(measurement)
    share = next(finding for finding in diagnosis.findings if finding.rule == "R-ARSHARE")
    assert share.numbers["share"] == pytest.approx(20 / 26)
    assert share.numbers["all_reduce_us"] == pytest.approx(20_000 / 17)
    assert {item.name for item in share.evidence} >= {"verify_all_reduce_ms", "all_reduces_per_verify"}
    draft = next(finding for finding in diagnosis.findings if finding.rule == "R-DRAFTTP")
    assert draft.numbers["draft_collectives_per_cycle"] == 9 + 3, "the draft phase and the extend pass"
    assert draft.numbers["draft_collective_ms"] == pytest.approx(4.5 + 1.5)
    assert "R-BE" not in fired(diagnosis), "62.5 tok/s beats 40"


def test_losing_speculation(measurement_with) -> None:
    diagnosis = diagnose(measurement_with(tok_s=30.0))
    finding = next(finding for finding in diagnosis.findings if finding.rule == "R-BE")
    assert finding.numbers["excess_ms"] == pytest.approx(2.5 / 30 * 1000 - 2.5 * 25)
    assert finding.threshold == pytest.approx(2.5 / 30 * 40)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"accept_length": 1.15, "tok_s": 28.75}, True),
        ({"correct_drafts_per_position": (0.35, 0.2)}, True),
        ({"correct_drafts_per_position": ()}, False),
        ({}, False),
    ],
)
def test_low_acceptance(measurement_with, changes: dict, expected: bool) -> None:
    assert ("R-AL" in fired(diagnose(measurement_with(**changes)))) is expected


def test_fixed_cost(measurement_with) -> None:
    fast_verify = {"draft": 3.0, "verify_compute": 4.0, "verify_all_reduce": 0.3, "extend": 0.5, "host": 0.4}
    diagnosis = diagnose(measurement_with(anatomy_ms=fast_verify, tok_s=2.5 / 8.2 * 1000, collectives=()))
    assert fired(diagnosis) == {"R-FIX"}


def test_what_the_server_did_not_tell_is_unknown_and_fires_nothing(measurement_with) -> None:
    diagnosis = diagnose(measurement_with(anatomy_ms={}, collectives=(), all_reduces_per_verify=None, cycle_ms=None))
    assert fired(diagnosis) == set()
    assert diagnosis.verdict.verify_all_reduce_ms is None
    unknown = [item for item in diagnosis.evidence if item.arm == "speculative" and item.value == UNKNOWN]
    assert {item.name for item in unknown} == {"cycle_ms", "all_reduces_per_verify"}
    assert not any(item.is_known for item in unknown)


def test_one_arm_gives_no_verdict(measurement) -> None:
    alone = measurement.model_copy(update={"arms": {"plain": measurement.arms["plain"]}})
    with pytest.raises(ConfigError, match="the speculative arm was not measured"):
        diagnose(alone)


def test_looping_outputs_are_found(measurement_with) -> None:
    looping = measurement_with(output_token_ids={"a": (5, 6) * 32})
    arms = {arm: looping.arms["speculative"].model_copy(update={"arm": arm}) for arm in ("plain", "speculative")}
    assert "R-BENCH" in fired(diagnose(looping.model_copy(update={"arms": arms})))
    assert "R-BENCH" not in fired(diagnose(measurement_with()))


@pytest.mark.parametrize(
    ("token_ids", "ratio"), [((1, 2) * 32, 2 / 63), (tuple(range(64)), 1.0), ((1,), 1.0), ((1, 1, 1), 0.5)]
)
def test_bigram_ratio(token_ids: tuple, ratio: float) -> None:
    assert bigram_ratio(token_ids) == pytest.approx(ratio)
