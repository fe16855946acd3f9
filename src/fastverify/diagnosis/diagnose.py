"""From one measured server to a diagnosis: evidence, both cycle costs, verdict, findings.

The speculative arm may be missing (a server launched without a drafter); then there is a plain cost and no verdict.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.cycle_cost import CycleCost, cost_of_arm
from fastverify.diagnosis.degenerate import bigram_ratio_of
from fastverify.diagnosis.evidence import UNKNOWN, Evidence
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.rules import Facts, apply_rules
from fastverify.diagnosis.verdict import Verdict, judge
from fastverify.errors import ConfigError
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement

DRAFT_PHASES = ("draft", "extend")


class Diagnosis(BaseModel):
    """All that one measurement says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Verdict
    plain: CycleCost
    speculative: CycleCost
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...]


def diagnose(measurement: ServerMeasurement, *, source: str = "measurement") -> Diagnosis:
    """Diagnosis of a server that served both arms. Raises ConfigError where an arm is missing."""
    missing = [arm for arm in ("plain", "speculative") if arm not in measurement.arms]
    if missing:
        raise ConfigError(
            f"a verdict needs both arms, the {' and '.join(missing)} arm was not measured. "
            "Launch the server with its drafter and measure both."
        )
    plain_arm, speculative_arm = measurement.arms["plain"], measurement.arms["speculative"]
    plain, speculative = cost_of_arm(plain_arm), cost_of_arm(speculative_arm)
    verdict = judge(plain, speculative, all_reduces_per_verify=speculative_arm.all_reduces_per_verify)
    ratio = bigram_ratio_of(measurement)
    evidence = (
        *evidence_of_arm(plain_arm, source),
        *evidence_of_arm(speculative_arm, source),
        Evidence(
            name="bigram_ratio", value=UNKNOWN if ratio is None else ratio, unit="share", arm="both", source=source
        ),
    )
    count, ms = _draft_collectives(measurement)
    facts = Facts(
        verdict=verdict,
        plain=plain,
        speculative=speculative,
        evidence=evidence,
        correct_drafts_per_position=speculative_arm.correct_drafts_per_position,
        draft_collectives_per_cycle=count,
        draft_collective_ms=ms,
        bigram_ratio=ratio,
    )
    return Diagnosis(
        verdict=verdict, plain=plain, speculative=speculative, evidence=evidence, findings=apply_rules(facts)
    )


def evidence_of_arm(arm: ArmMeasurement, source: str) -> tuple[Evidence, ...]:
    """Every number of an arm that a rule may rest on; what the server did not tell is "unknown"."""
    numbers: list[tuple[str, float | None, str]] = [
        ("tok_s", arm.tok_s, "tok/s"),
        ("cycle_ms", arm.cycle_ms, "ms"),
        *((f"{phase}_ms", ms, "ms") for phase, ms in arm.anatomy_ms.items()),
    ]
    if arm.arm == "speculative":
        numbers += [
            ("accept_length", arm.accept_length, "tokens"),
            ("all_reduces_per_verify", arm.all_reduces_per_verify, "calls"),
            *(("correct_drafts_per_position", share, "share") for share in arm.correct_drafts_per_position),
        ]
    return tuple(
        Evidence(name=name, value=UNKNOWN if value is None else value, unit=unit, arm=arm.arm, source=source)
        for name, value, unit in numbers
    )


def _draft_collectives(measurement: ServerMeasurement) -> tuple[float | None, float | None]:
    """Calls and milliseconds per cycle of the draft model's collectives; None where none were reported.

    A cycle has one draft phase and one extend pass, whatever the number of draft steps.
    """
    arm = measurement.arms["speculative"]
    own = [cost for cost in arm.collectives if cost.phase in DRAFT_PHASES]
    if not own:
        return None, None
    return sum(cost.per_pass for cost in own), sum(cost.ms_per_pass for cost in own)
