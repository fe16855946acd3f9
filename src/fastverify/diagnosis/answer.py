"""The answer to a report: verdict, numbers of every arm, findings, what could not be told, and a projection.

The names of the JSON document are part of the interface. A number that could not be told is null, and `unknown` says
what it needs. It holds no plan: experiments are the tuning part's.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.cycle_cost import GAP
from fastverify.diagnosis.evidence import Evidence
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.plain_split import plain_all_reduce_ms
from fastverify.diagnosis.projection import ProjectedArms, project
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.reported import ReportedFacts
from fastverify.diagnosis.rules import apply_report_rules
from fastverify.diagnosis.unknowns import Unknown, unknowns_of
from fastverify.diagnosis.verdict import EVEN_MARGIN

SCHEMA_VERSION = 1


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArmAnswer(_Answer):
    """What one arm's numbers come to."""

    arm: str
    batch: int
    plain_tok_s: float | None
    speculative_tok_s: float | None
    speedup: float | None
    accept_length: float | None
    break_even_accept_length: float | None
    plain_ms: float | None
    cycle_ms: float | None
    missing_ms: float | None
    """By how much the cycle is longer than its tokens are worth; below 0 where speculation wins."""
    phases_ms: dict[str, float]
    """Empty where no phase was told."""
    verify_ms: float | None
    outside_verify_ms: float | None
    all_reduce_us: float | None
    all_reduce_share_of_verify: float | None
    plain_message_bytes: int | None
    verify_message_bytes: int | None
    plain_all_reduce_ms: tuple[float, float] | None
    """Range of the all-reduces of a plain step."""


class Answer(_Answer):
    """The fields before `arms` are those of the main arm."""

    schema_version: int = SCHEMA_VERSION
    headline: str
    speedup: float | None
    accept_length: float | None
    break_even_accept_length: float | None
    cycle_ms: float | None
    plain_ms: float | None
    missing_ms: float | None
    arms: tuple[ArmAnswer, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    projection: ProjectedArms | None
    evidence: tuple[Evidence, ...]


def answer_report(facts: ReportedFacts, evidence: tuple[Evidence, ...] = ()) -> Answer:
    """Everything that can be said about a report. Raises ConfigError for numbers that contradict each other."""
    report = Report(facts, evidence)
    main = report.main_arm
    arms = {arm.name: _arm_answer(report, arm) for arm in report.arms}
    numbers = arms[main.name]
    return Answer(
        headline=_headline(main),
        speedup=numbers.speedup,
        accept_length=numbers.accept_length,
        break_even_accept_length=numbers.break_even_accept_length,
        cycle_ms=numbers.cycle_ms,
        plain_ms=numbers.plain_ms,
        missing_ms=numbers.missing_ms,
        arms=tuple(arms.values()),
        findings=apply_report_rules(report),
        unknown=unknowns_of(report),
        projection=project(report, main, facts.projection) if facts.projection is not None else None,
        evidence=evidence,
    )


def _arm_answer(report: Report, arm: ArmReading) -> ArmAnswer:
    cost, verdict = arm.speculative_cost, arm.verdict
    verify_ms = cost.verify_ms if cost is not None else arm.facts.verify_ms
    all_reduce_ms = cost.phases_ms.get("verify_all_reduce") if cost is not None else arm.facts.verify_all_reduce_ms
    count = arm.facts.all_reduces_per_verify
    split = plain_all_reduce_ms(report, arm)
    missing_ms = None
    if arm.cycle_ms is not None and arm.plain_ms is not None and arm.accept_length is not None:
        missing_ms = arm.cycle_ms - arm.accept_length * arm.plain_ms
    return ArmAnswer(
        arm=arm.name,
        batch=arm.batch,
        plain_tok_s=arm.facts.plain_tok_s,
        speculative_tok_s=arm.facts.speculative_tok_s,
        speedup=arm.speedup,
        accept_length=arm.accept_length,
        break_even_accept_length=verdict.break_even_accept_length if verdict else arm.break_even_accept_length,
        plain_ms=arm.plain_ms,
        cycle_ms=arm.cycle_ms,
        missing_ms=missing_ms,
        phases_ms={} if cost is None or set(cost.phases_ms) == {GAP} else dict(cost.phases_ms),
        verify_ms=verify_ms,
        outside_verify_ms=cost.total_ms - verify_ms if cost is not None and verify_ms is not None else None,
        all_reduce_us=all_reduce_ms * 1000 / count if all_reduce_ms is not None and count else None,
        all_reduce_share_of_verify=all_reduce_ms / verify_ms if all_reduce_ms is not None and verify_ms else None,
        plain_message_bytes=report.message_bytes(arm, plain=True) if (arm.facts.tp or 1) > 1 else None,
        verify_message_bytes=report.message_bytes(arm) if (arm.facts.tp or 1) > 1 else None,
        plain_all_reduce_ms=None if split is None else (split.low, split.high),
    )


def _headline(arm: ArmReading) -> str:
    if arm.verdict is not None and arm.speculative_cost is not None:
        if set(arm.speculative_cost.phases_ms) != {GAP}:
            return arm.verdict.headline
        head, _, _ = arm.verdict.headline.partition(". ")
        return f"{head}. The cycle takes {arm.verdict.cycle_ms:.1f} ms; no phase of it was told."
    if arm.speedup is not None:
        gain = arm.speedup - 1
        even = abs(gain) < EVEN_MARGIN
        outcome = "breaks even" if even else f"{'wins' if gain > 0 else 'loses'} {abs(gain) * 100:.0f} %"
        return f"Speculation {outcome}; why could not be told: the acceptance length is missing."
    if arm.cycle_ms is not None:
        return f"A cycle takes {arm.cycle_ms:.1f} ms; whether it pays could not be told: the plain rate is missing."
    return "Whether speculation pays could not be told: the rate of at least one arm is missing."
