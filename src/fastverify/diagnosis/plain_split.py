"""How much of a plain step is its all-reduces, where only the verify pass was taken apart.

Both passes make the same number of calls over the same ranks, and a verify pass computes at least as much as a plain
step. That bounds the plain all-reduces from both sides; published times stand in where nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.model_sizes import expert_growth
from fastverify.diagnosis.report import Report
from fastverify.units import US_PER_MS

# Source: at most three times the share that Cohere measured (0.086, 2026-04) of the bound on expert growth.
MAX_EXPERT_COST_SHARE = 0.26
# Arbitrary: no step is all communication.
MAX_SHARE = 0.95


@dataclass(frozen=True)
class Bounds:
    """`low <= mid <= high`, in ms."""

    low: float
    mid: float
    high: float
    source: str


def plain_all_reduce_ms(report: Report, arm: ArmReading) -> Bounds | None:
    """All-reduces of one plain step; None where nothing bounds them."""
    if arm.plain_ms is None:
        return None
    told = arm.facts.plain_all_reduce_ms
    if told is not None:
        told = min(told, MAX_SHARE * arm.plain_ms)
        return Bounds(told, told, told, "told")
    cost = arm.speculative_cost
    compute_ms = cost.phases_ms.get("verify_compute") if cost is not None else None
    all_reduce_ms = cost.phases_ms.get("verify_all_reduce") if cost is not None else None
    if compute_ms is not None and all_reduce_ms is not None:
        return _from_verify(report, arm, arm.plain_ms, compute_ms, all_reduce_ms)
    return _from_prior(report, arm, arm.plain_ms)


def _from_verify(
    report: Report, arm: ArmReading, plain_ms: float, compute_ms: float, all_reduce_ms: float
) -> Bounds | None:
    growth = _max_compute_growth(report, arm)
    most = min(all_reduce_ms, MAX_SHARE * plain_ms)
    low = min(max(plain_ms - compute_ms, 0.0), most)
    high = min(max(plain_ms - compute_ms / growth, 0.0), most)
    return Bounds(low, (low + high) / 2, high, "plain step less what the verify pass computes")


def _max_compute_growth(report: Report, arm: ArmReading) -> float:
    model, rows = report.model, arm.rows or 4
    if not model.num_experts or not model.num_experts_per_token:
        return 1.25
    growth = expert_growth(model.num_experts, model.num_experts_per_token, rows * arm.batch)
    growth /= expert_growth(model.num_experts, model.num_experts_per_token, arm.batch)
    return 1.0 + MAX_EXPERT_COST_SHARE * (growth - 1.0)


def _from_prior(report: Report, arm: ArmReading, plain_ms: float) -> Bounds | None:
    size, count = report.message_bytes(arm, plain=True), report.model.all_reduces_per_pass
    prior = report.expected(arm, size) if size is not None else None
    if prior is None or count is None:
        return None
    mid = count * prior.us / US_PER_MS
    most = MAX_SHARE * plain_ms
    ends = (mid * (1 - prior.spread), mid, mid * (1 + prior.spread))
    low, mid, high = (min(value, most) for value in ends)
    return Bounds(low, mid, high, prior.source)
