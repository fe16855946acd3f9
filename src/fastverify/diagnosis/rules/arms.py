"""Rules on one reported arm: those of a measured pair where both costs are known, break-even from the rates alone else.

The pair's rules are in measured.py; here a report's arm is put into their form.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.model_sizes import expert_growth
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules.measured import MAX_OUTSIDE_VERIFY_SHARE, Facts, apply_rules
from fastverify.diagnosis.verdict import EVEN_MARGIN
from fastverify.units import US_PER_MS

# Source: a verify pass of 4 rows took 1.25 plain steps of a mixture of experts whose bound was 3.9 (Cohere, 2026-04).
EXPERT_COST_SHARE = 0.086
# Arbitrary: attention, sampling and bucket padding of a few more rows; dense weights are read once whatever the rows.
DENSE_VERIFY_RATIO = 1.15
# Above this many rows a dense pass may be compute-bound, and the estimate says nothing.
MAX_ROWS = 64


def judge_arms(report: Report) -> Iterator[Finding]:
    """R-BE, R-AL, R-ARSHARE, R-DRAFTTP, R-FIX and R-BENCH of every own arm."""
    for arm in report.own_arms():
        if arm.verdict is not None:
            yield from (
                finding.model_copy(update={"arms": (arm.name,)}) for finding in apply_rules(_facts(report, arm))
            )
        else:
            yield from _without_costs(report, arm)


def fixed_cost_beyond_verify(report: Report) -> Iterator[Finding]:
    """R-FIX: the cycle is longer than any plausible verify pass of so few rows."""
    for arm in report.own_arms():
        if arm.verdict is None or arm.verdict.verify_ms is not None or arm.rows is None:
            continue
        if arm.rows * arm.batch > MAX_ROWS:
            continue
        verify_ms = estimated_verify_ms(report, arm, arm.verdict.plain_ms)
        outside_ms = arm.verdict.cycle_ms - verify_ms
        share = outside_ms / arm.verdict.cycle_ms
        if share < MAX_OUTSIDE_VERIFY_SHARE:
            continue
        yield Finding(
            rule="R-FIX",
            title=f"About {outside_ms:.1f} ms of the {arm.verdict.cycle_ms:.1f} ms cycle is outside the verify pass.",
            numbers={"cycle_ms": arm.verdict.cycle_ms, "estimated_verify_ms": verify_ms, "share": share},
            threshold=MAX_OUTSIDE_VERIFY_SHARE,
            threshold_source="twice the 18 % of vllm#45258; verify pass estimated from the plain step",
            confidence="low",
            evidence=report.evidence_named("accept_length", "plain_tok_s", "speculative_tok_s"),
            next="Measure verify_ms: a trace, or SGLang's SGLANG_ENABLE_METRICS_DEVICE_TIMER=1.",
            arms=(arm.name,),
        )


def estimated_verify_ms(report: Report, arm: ArmReading, plain_ms: float) -> float:
    """Verify pass from the plain step: more experts, longer messages, otherwise the same weights read once."""
    rows = arm.rows or 1
    model = report.model
    ratio = DENSE_VERIFY_RATIO
    if model.is_moe:
        experts, chosen = model.num_experts or 128, model.num_experts_per_token or 8
        growth = expert_growth(experts, chosen, rows * arm.batch) / expert_growth(experts, chosen, arm.batch)
        ratio = 1.0 + EXPERT_COST_SHARE * (growth - 1.0)
    return plain_ms * ratio + _all_reduce_growth_ms(report, arm)


def _all_reduce_growth_ms(report: Report, arm: ArmReading) -> float:
    """What the longer messages add, by published times; 0 where model or fabric is not known."""
    count = report.model.all_reduces_per_pass
    sizes = (report.message_bytes(arm, plain=True), report.message_bytes(arm))
    if count is None or sizes[0] is None or sizes[1] is None:
        return 0.0
    small, large = report.expected(arm, sizes[0]), report.expected(arm, sizes[1])
    if small is None or large is None:
        return 0.0
    return count * max(large.us - small.us, 0.0) / US_PER_MS


def _facts(report: Report, arm: ArmReading) -> Facts:
    assert arm.verdict is not None, "only arms with a verdict"
    assert arm.plain_cost is not None, "a verdict has both costs"
    assert arm.speculative_cost is not None, "a verdict has both costs"
    facts = arm.facts
    return Facts(
        verdict=arm.verdict,
        plain=arm.plain_cost,
        speculative=arm.speculative_cost,
        evidence=report.evidence,
        correct_drafts_per_position=facts.accept_rate_per_position or (),
        draft_collectives_per_cycle=facts.draft_collectives_per_cycle,
        draft_collective_ms=facts.draft_collective_ms,
        bigram_ratio=facts.bigram_ratio,
    )


def _without_costs(report: Report, arm: ArmReading) -> Iterator[Finding]:
    """R-BE from two rates and R-AL from an acceptance length, where there is no more."""
    speedup, length = arm.speedup, arm.accept_length
    if speedup is not None and speedup < 1 - EVEN_MARGIN:
        yield Finding(
            rule="R-BE",
            title=f"Speculation runs at {speedup:.2f} of the plain rate: its cycles are {1 / speedup:.2f} times as long"
            " as what their tokens would take without it.",
            numbers={"speedup": speedup, "cycle_over_worth": 1 / speedup},
            threshold=1.0,
            threshold_source="break-even: accept_length x plain_ms = cycle_ms",
            confidence="high",
            evidence=report.evidence_named("plain_tok_s", "speculative_tok_s"),
            next="Add the acceptance length (server log or metrics page): it tells a long cycle from poor drafts.",
            arms=(arm.name,),
        )
    if length is not None and length <= 1.2:
        yield Finding(
            rule="R-AL",
            title=f"Acceptance length {length:.2f}: a verify pass yields little more than a plain step.",
            numbers={"accept_length": length},
            threshold=1.2,
            threshold_source="rule R-AL of the field reports, without a derivation",
            confidence="medium",
            evidence=report.evidence_named("accept_length"),
            next="Check that the draft model belongs to this target and that prompts are real text; then train it on.",
            arms=(arm.name,),
        )
