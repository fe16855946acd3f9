"""Rules on acceptance between arms: it fell where only the machine changed, or it is flattered by the prompts."""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules.arm_groups import groups_varying, names

# Source: rule R-AL of the field reports: a fifth fewer correct drafts than in the previous run.
MAX_FALL = 0.2
# Arbitrary: acceptance of two data sets differs by up to a fifth for ordinary reasons.
MAX_FLATTERY = 1.2


def fell_between_arms(report: Report) -> Iterator[Finding]:
    """R-AL, or R-CORRUPT where the arms differ in their collectives: fewer correct drafts from the same drafter."""
    for group in groups_varying(report.own_arms(), "all_reduce_backend"):
        arms = [arm for arm in group if arm.accept_length is not None]
        if len(arms) < 2:
            continue
        best, worst = max(arms, key=_length), min(arms, key=_length)
        fall = 1.0 - (_length(worst) - 1.0) / (_length(best) - 1.0) if _length(best) > 1 else 0.0
        if fall < MAX_FALL:
            continue
        is_comm = best.facts.all_reduce_backend != worst.facts.all_reduce_backend
        yield Finding(
            rule="R-CORRUPT" if is_comm else "R-AL",
            title=f"`{worst.name}` accepts {fall * 100:.0f} % fewer drafts than `{best.name}`: "
            f"acceptance length {_length(worst):.2f} against {_length(best):.2f}.",
            numbers={"accept_length": _length(worst), "best_accept_length": _length(best), "fall": fall},
            threshold=MAX_FALL,
            threshold_source="field reports: a fifth fewer than in the previous run",
            confidence="high" if is_comm else "medium",
            evidence=report.evidence_named("accept_length", "itl_ms", "tpot_ms", "accept_rate"),
            next="Another all-reduce must not change what is accepted: compare outputs and sums before using it."
            if is_comm
            else "The same drafter should be accepted as often: look for a race, another draft, or other prompts.",
            arms=names((best, worst)),
        )


def random_prompts(report: Report) -> Iterator[Finding]:
    """R-BENCH: random prompts, or an acceptance that only random prompts have."""
    for group in groups_varying(report.own_arms(), "workload"):
        random = [arm for arm in group if _is_random(arm) and arm.accept_length is not None]
        real = [arm for arm in group if not _is_random(arm) and arm.facts.workload and arm.accept_length is not None]
        if not random or not real:
            continue
        lowest = min(real, key=_length)
        ratio = max(_length(random[0]) / _length(lowest), _length(lowest) / _length(random[0]))
        if ratio > MAX_FLATTERY:
            yield _benchmark(report, (random[0], *real), ratio, _length(random[0]), _length(lowest))
    if all(_is_random(arm) for arm in report.own_arms()):
        yield Finding(
            rule="R-BENCH",
            title="Every number comes from random prompts, whose acceptance is that of no real text.",
            numbers={},
            threshold=MAX_FLATTERY,
            threshold_source="tokenspeed#1305: acceptance length 3.93 on random prompts, 1.94 on chat",
            confidence="medium",
            evidence=report.evidence_named("workload"),
            next="Measure with prompts of the real workload.",
        )


def _benchmark(
    report: Report, arms: tuple[ArmReading, ...], ratio: float, random_length: float, real_length: float
) -> Finding:
    return Finding(
        rule="R-BENCH",
        title=f"Acceptance length {random_length:.2f} on random prompts, {real_length:.2f} on real ones: only "
        "the latter counts.",
        numbers={"accept_length_random": random_length, "accept_length_real": real_length, "ratio": ratio},
        threshold=MAX_FLATTERY,
        threshold_source="arbitrary: data sets differ by up to a fifth for ordinary reasons",
        confidence="high",
        evidence=report.evidence_named("accept_length", "workload"),
        next="Judge speculation with prompts of the real workload; check outputs on random prompts for loops.",
        arms=names(arms),
    )


def _is_random(arm: ArmReading) -> bool:
    return (arm.facts.workload or "").lower().startswith("random")


def _length(arm: ArmReading) -> float:
    return arm.accept_length or 1.0
