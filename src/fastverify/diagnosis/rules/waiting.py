"""Rules on waiting: ranks that do not keep step, collectives that spin, ranks that cost more than they bring."""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules.arm_groups import groups_varying, names
from fastverify.units import US_PER_MS

# Source: club-3090#356, where 82 and 51 % of utilization went with messages through host memory.
MAX_UTILIZATION_SPREAD = 0.2
# Source: a wedged collective shows 100 % utilization at 120 of 600 W (rtx6kpro#15); rule R-SPIN says below 40 %.
SPIN_UTILIZATION = 0.99
SPIN_POWER_SHARE = 0.4
# Arbitrary: the priors have spreads up to 0.6, so three times a prior is no transfer time.
MAX_OVER_TRANSFER = 3.0


def uneven_utilization(report: Report) -> Iterator[Finding]:
    """R-SKEW: some GPUs work while others wait."""
    shares = report.machine.dump.gpu_utilization or ()
    if len(shares) < 2 or max(shares) - min(shares) < MAX_UTILIZATION_SPREAD:
        return
    yield Finding(
        rule="R-SKEW",
        title=f"GPU utilization is uneven: {min(shares) * 100:.0f} to {max(shares) * 100:.0f} %.",
        numbers={"lowest": min(shares), "highest": max(shares)},
        threshold=MAX_UTILIZATION_SPREAD,
        threshold_source="club-3090#356: 82 and 51 % with messages through host memory",
        confidence="medium",
        evidence=report.evidence_named("gpu_utilization"),
        next="Compare one collective over the ranks of a trace: its shortest time is transfer, the rest is waiting.",
    )


def spinning(report: Report) -> Iterator[Finding]:
    """R-SPIN: fully busy at little power is a kernel that polls a flag."""
    dump = report.machine.dump
    pairs = list(zip(dump.gpu_utilization or (), dump.gpu_power_share or (), strict=False))
    spinning_gpus = [(use, power) for use, power in pairs if use >= SPIN_UTILIZATION and power < SPIN_POWER_SHARE]
    if not spinning_gpus:
        return
    yield Finding(
        rule="R-SPIN",
        title=f"{len(spinning_gpus)} of {len(pairs)} GPUs are fully busy at under {SPIN_POWER_SHARE * 100:.0f} % of "
        "their power: a collective spins, waiting for a rank or for ever.",
        numbers={"num_spinning": float(len(spinning_gpus)), "lowest_power_share": min(p for _, p in spinning_gpus)},
        threshold=SPIN_POWER_SHARE,
        threshold_source="rtx6kpro#15: a wedged collective at 100 % utilization and a fifth of the power",
        confidence="high",
        evidence=report.evidence_named("gpu_utilization", "gpu_power_share"),
        next="If it stays so without load, a GPU is wedged and needs a reset; else ranks wait for a slow one.",
    )


def more_ranks_slower(report: Report) -> Iterator[Finding]:
    """R-SKEW: plain decoding is slower on more ranks by far more than its messages can take."""
    for group in groups_varying(report.own_arms(), "tp"):
        arms = sorted((arm for arm in group if arm.facts.tp and arm.plain_ms), key=lambda arm: arm.facts.tp or 0)
        if len(arms) < 2:
            continue
        few, many = arms[0], arms[-1]
        few_ms, many_ms = few.plain_ms or 0.0, many.plain_ms or 0.0
        size, count = report.message_bytes(many, plain=True), report.model.all_reduces_per_pass
        prior = report.prior(many, size) if size is not None else None
        if many_ms <= few_ms or prior is None or count is None:
            continue
        unexplained_ms = many_ms - few_ms * (few.facts.tp or 1) / (many.facts.tp or 1)
        transfer_ms = count * prior.us / US_PER_MS
        if unexplained_ms < MAX_OVER_TRANSFER * transfer_ms:
            continue
        yield Finding(
            rule="R-SKEW",
            title=f"On {many.facts.tp} ranks a step takes {unexplained_ms:.0f} ms more than its share of the work, its "
            f"messages about {transfer_ms:.1f} ms: ranks wait for each other or for the host.",
            numbers={"unexplained_ms": unexplained_ms, "transfer_ms": transfer_ms, "plain_ms": many_ms},
            threshold=MAX_OVER_TRANSFER,
            threshold_source=f"three times {prior.source}",
            confidence="medium",
            evidence=report.evidence_named("plain_tok_s", "tp"),
            next="A trace of every rank: launch gaps, graphs, and how long each rank waits in the same collective.",
            arms=names((few, many)),
        )
