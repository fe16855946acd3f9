"""Every collected public report: ratios to the printed digits, the right rules, no wrong one at high confidence."""

from typing import Any

import pytest

from fastverify.diagnosis.answer import ArmAnswer
from tests.diagnosis.field_cases import CASES, DOCUMENT, answer_of_report, arms_of

# A loss is a loss in every report; R-BE needs no cause.
ALWAYS_RIGHT = {"R-BE"}
MIN_SHARE_OF_RIGHT_CASES = 0.9


def arm_of(case: dict[str, Any], index: int = 0) -> ArmAnswer:
    label = arms_of(case)[index]["label"]
    return next(arm for arm in answer_of_report(case["ref"]).arms if arm.arm == label)


def rules_of(case: dict[str, Any], *, confidence: str | None = None) -> set[str]:
    """Rules that fired on the arms of this case, or on the whole report."""
    labels = {arm["label"] for arm in arms_of(case)}
    return {
        finding.rule
        for finding in answer_of_report(case["ref"]).findings
        if (not finding.arms or labels & set(finding.arms)) and confidence in (None, finding.confidence)
    }


@pytest.mark.parametrize("case", [c for c in CASES if "expected_ratio" in c], ids=lambda case: case["id"])
def test_ratio_to_the_printed_digits(case: dict[str, Any]) -> None:
    arm = arm_of(case)
    if case["arms"] == "plain_vs_spec":
        ratio = arm.speedup
    elif case["arms"] == "tp1_vs_tp2":
        ratio = arm.plain_tok_s / arm_of(case, 1).plain_tok_s
    elif case["arms"] == "lab_vs_user":
        ratio = arm_of(case, 1).cycle_ms / arm.cycle_ms
    else:
        first, second = arm, arm_of(case, 1)
        ratio = (second.speculative_tok_s or second.plain_tok_s) / (first.speculative_tok_s or first.plain_tok_s)
    assert round(ratio, 3) == pytest.approx(case["expected_ratio"], abs=0.0011)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if "expected_cycle_ratio" in c and c["base_tok_s"] and c["arms"] == "plain_vs_spec"],
    ids=lambda case: case["id"],
)
def test_break_even_to_the_printed_digits(case: dict[str, Any]) -> None:
    assert round(arm_of(case).break_even_accept_length, 2) == pytest.approx(case["expected_cycle_ratio"], abs=0.011)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_no_wrong_rule_at_high_confidence(case: dict[str, Any]) -> None:
    assert rules_of(case, confidence="high") - ALWAYS_RIGHT <= set(case["rules"])


def test_nine_of_ten_cases_get_their_rules() -> None:
    missed = {case["id"]: set(case["rules"]) - rules_of(case) for case in CASES if set(case["rules"]) - rules_of(case)}
    assert len(missed) <= len(CASES) * (1 - MIN_SHARE_OF_RIGHT_CASES), missed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_what_is_missing_is_said(case: dict[str, Any]) -> None:
    answer = answer_of_report(case["ref"])
    names = {unknown.name for unknown in answer.unknown}
    for name, value in (("speedup", answer.speedup), ("break_even_accept_length", answer.break_even_accept_length)):
        assert value is not None or names & {"plain_tok_s", "speculative_tok_s", "accept_length"}, name


def test_every_case_is_used() -> None:
    assert len(CASES) == len({case["id"] for case in CASES}) == 38
    assert DOCUMENT["schema_version"] == 1
