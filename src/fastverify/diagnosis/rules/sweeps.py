"""Rules on sweeps: what stays when ranks, rows, draft steps, context or batch change tells what a cycle is made of.

None of them needs a trace. Where the acceptance length was not told, it is only assumed equal within one sweep.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules.arm_groups import groups_varying, names
from fastverify.diagnosis.rules.measured import MAX_OUTSIDE_VERIFY_SHARE

# Arbitrary: a cycle that costs this many plain steps before its first row has most of its length outside the rows.
MIN_INTERCEPT = 1.5
# Arbitrary: the bound holds for any acceptance that does not fall with more steps, so a fifth is already much.
MIN_DRAFT_SHARE = 0.2
# Source: rates of two launches of one configuration differ by 1.5 to 4 % (field reports, section 4).
NOISE = 0.05
# Arbitrary: time per token grows half again as fast as plain's.
MIN_CONTEXT_GROWTH = 1.5


def fixed_cost_over_ranks(report: Report) -> Iterator[Finding]:
    """R-FIX: plain decoding gains from more ranks, the cycle much less: what does not shrink is not the target."""
    for group in groups_varying(report.own_arms(), "tp"):
        arms = [arm for arm in group if arm.facts.tp and arm.speedup is not None]
        if len(arms) < 2:
            continue
        few, many = min(arms, key=_tp), max(arms, key=_tp)
        plain = (_per_token_ms(few.plain_tok_s), _per_token_ms(many.plain_tok_s))
        spec = (_per_token_ms(few.speculative_tok_s), _per_token_ms(many.speculative_tok_s))
        if not plain[0] > plain[1] or not spec[0] > spec[1]:
            continue
        slope = (spec[0] - spec[1]) / (plain[0] - plain[1])
        fixed_share = 1.0 - slope * plain[1] / spec[1]
        if fixed_share < MAX_OUTSIDE_VERIFY_SHARE:
            continue
        yield Finding(
            rule="R-FIX",
            title=f"From {few.facts.tp} to {many.facts.tp} ranks, {fixed_share * 100:.0f} % of the time per token "
            "does not shrink with the target.",
            numbers={"fixed_share": fixed_share, "plain_ratio": plain[1] / plain[0], "ratio": spec[1] / spec[0]},
            threshold=MAX_OUTSIDE_VERIFY_SHARE,
            threshold_source="twice the 18 % of vllm#45258",
            confidence="medium",
            evidence=report.evidence_named("plain_tok_s", "speculative_tok_s", "tp"),
            next="Look at draft, sampling and host time per cycle: a trace of one rank, or the servers' step metrics.",
            arms=(many.name,),
        )


def fixed_cost_over_width(report: Report) -> Iterator[Finding]:
    """R-FIX: the line through cycle time over rows starts far above a plain step."""
    varying = ("num_verify_tokens", "num_draft_steps", "top_k", "shape")
    for group in groups_varying(report.own_arms(), *varying):
        arms = [arm for arm in group if arm.cycle_ms is not None and arm.rows and arm.plain_ms is not None]
        rows = np.array([float(arm.rows or 0) for arm in arms])
        if len(arms) < 3 or len(set(rows)) < 2:
            continue
        slope_ms, intercept_ms = (float(x) for x in np.polyfit(rows, [arm.cycle_ms or 0.0 for arm in arms], 1))
        ratio = intercept_ms / (arms[0].plain_ms or 1.0)
        if ratio < MIN_INTERCEPT or slope_ms * float(np.ptp(rows)) > intercept_ms:
            continue
        yield Finding(
            rule="R-FIX",
            title=f"{intercept_ms:.1f} ms of every cycle do not depend on the number of rows: {ratio:.1f} plain steps.",
            numbers={"intercept_ms": intercept_ms, "ms_per_row": slope_ms, "intercept_over_plain": ratio},
            threshold=MIN_INTERCEPT,
            threshold_source="arbitrary: most of such a cycle is not the rows",
            confidence="medium",
            evidence=report.evidence_named("accept_length", "num_verify_tokens", "speculative_tok_s"),
            next="Rows, and so experts, are not the cause. Look at the draft loop, graphs and host work in a trace.",
            arms=names(arms),
        )


def draft_cost_over_steps(report: Report) -> Iterator[Finding]:
    """R-FIX: more draft steps make it slower although acceptance cannot fall: drafting is what takes the time."""
    for group in groups_varying(report.own_arms(), "num_draft_steps", "num_verify_tokens"):
        arms = sorted((a for a in group if a.facts.num_draft_steps and a.speculative_tok_s), key=_steps)
        if len(arms) < 2:
            continue
        few, many = arms[0], arms[-1]
        ratio = (few.speculative_tok_s or 0.0) / (many.speculative_tok_s or 1.0)
        added = _steps(many) - ratio * _steps(few)
        if ratio < 1 + NOISE or added <= 0:
            continue
        # From rest + k2 x step >= ratio x (rest + k1 x step): the step as a share of the rest, at least.
        step = (ratio - 1.0) / added
        share = _steps(many) * step / (1.0 + _steps(many) * step)
        if share < MIN_DRAFT_SHARE:
            continue
        yield Finding(
            rule="R-FIX",
            title=f"Going from {_steps(few):.0f} to {_steps(many):.0f} draft steps slows decoding {ratio:.2f} times: "
            f"drafting is at least {share * 100:.0f} % of the longer cycle.",
            numbers={"slowdown": ratio, "draft_share_at_least": share, "step_over_rest": step},
            threshold=MIN_DRAFT_SHARE,
            threshold_source="arbitrary; a lower bound, since acceptance does not fall with more steps",
            confidence="medium",
            evidence=report.evidence_named("speculative_tok_s", "num_draft_steps"),
            next="Fewer draft steps, a smaller draft model, and a plain run to know the break-even.",
            arms=names(arms),
        )


def same_drafts_faster(report: Report) -> Iterator[Finding]:
    """R-FIX: on one rank the same configuration got faster without other drafts: what went was overhead."""
    for group in groups_varying(report.own_arms()):
        arms = [arm for arm in group if arm.speculative_tok_s and arm.facts.tp == 1]
        lengths = {arm.facts.accept_length for arm in arms}
        if len(arms) < 2 or len(lengths) > 1:
            continue
        slow, fast = min(arms, key=_rate), max(arms, key=_rate)
        share = 1.0 - _rate(slow) / _rate(fast)
        if share < NOISE:
            continue
        yield Finding(
            rule="R-FIX",
            title=f"`{fast.name}` is {(_rate(fast) / _rate(slow) - 1) * 100:.0f} % faster with the same model, ranks "
            f"and drafts: at least {share * 100:.0f} % of the slow cycle was overhead.",
            numbers={"overhead_share_at_least": share, "slow_tok_s": _rate(slow), "fast_tok_s": _rate(fast)},
            threshold=NOISE,
            threshold_source="launch-to-launch noise of a rate is 1.5 to 4 %",
            confidence="medium",
            evidence=report.evidence_named("speculative_tok_s"),
            next="Compare both acceptance lengths; then look for synchronisation and gaps in a trace of the slow one.",
            arms=names(arms),
        )


def grows_with_context(report: Report) -> Iterator[Finding]:
    """R-CTX: time per token grows with the context much faster than plain decoding's."""
    for group in groups_varying(report.own_arms(), "context"):
        arms = sorted((a for a in group if a.facts.context is not None and a.speedup is not None), key=_context)
        if len(arms) < 2:
            continue
        growth = (arms[0].speedup or 0.0) / (arms[-1].speedup or 1.0)
        if growth < MIN_CONTEXT_GROWTH:
            continue
        is_steady = len(arms) >= 3 and all(
            (a.speedup or 0) >= (b.speedup or 0) for a, b in zip(arms, arms[1:], strict=False)
        )
        lost = next((arm for arm in arms if (arm.speedup or 0) < 1), None)
        where = f"; it loses from {lost.facts.context} tokens on" if lost is not None else ""
        yield Finding(
            rule="R-CTX",
            title=f"Speculation's speedup falls from {arms[0].speedup:.2f} to {arms[-1].speedup:.2f} "
            f"between {arms[0].facts.context} and {arms[-1].facts.context} tokens of context{where}.",
            numbers={
                "growth_over_plain": growth,
                "speedup_short": arms[0].speedup or 0,
                "speedup_long": arms[-1].speedup or 0,
            },
            threshold=MIN_CONTEXT_GROWTH,
            threshold_source="arbitrary: half again as fast as plain decoding",
            confidence="high" if is_steady else "medium",
            evidence=report.evidence_named("context", "plain_tok_s", "speculative_tok_s"),
            next="Try another attention backend for draft and verify, and turn speculation off above the crossing.",
            arms=names(arms),
        )
    yield from _long_context_alone(report)


def crosses_with_batch(report: Report) -> Iterator[Finding]:
    """R-WIDE: speculation pays at small batches and loses at large ones."""
    for group in groups_varying(report.own_arms(), "batch"):
        arms = sorted((arm for arm in group if arm.facts.batch and arm.speedup is not None), key=lambda a: a.batch)
        winning = [arm for arm in arms if (arm.speedup or 0) > 1]
        losing = [arm for arm in arms if (arm.speedup or 0) < 1]
        if not winning or not losing or winning[-1].batch >= losing[0].batch:
            continue
        yield Finding(
            rule="R-WIDE",
            title=f"Speculation pays up to batch {winning[-1].batch} and loses from batch {losing[0].batch} on.",
            numbers={"last_winning_batch": float(winning[-1].batch), "first_losing_batch": float(losing[0].batch)},
            threshold=1.0,
            threshold_source="speedup of 1",
            confidence="high",
            evidence=report.evidence_named("batch", "plain_tok_s", "speculative_tok_s"),
            next="Fewer drafts per batch size (a K schedule), or no speculation above the crossing.",
            arms=names(arms),
            experiments=("draft.schedule",),
        )


def _long_context_alone(report: Report) -> Iterator[Finding]:
    for arm in report.own_arms():
        if len({a.facts.context for a in report.own_arms()}) > 1 or (arm.facts.context or 0) < 16384:
            continue
        if arm.speedup is None or arm.speedup >= 1:
            continue
        yield Finding(
            rule="R-CTX",
            title=f"Speculation loses at {arm.facts.context} tokens of context; the context may be why.",
            numbers={"context": float(arm.facts.context or 0), "speedup": arm.speedup},
            threshold=16384,
            threshold_source="arbitrary: published losses with context begin at 32768 tokens",
            confidence="low",
            evidence=report.evidence_named("context"),
            next="Measure both arms at a short context as well.",
            arms=(arm.name,),
        )


def _per_token_ms(tok_s: float | None) -> float:
    return 1000.0 / tok_s if tok_s else 0.0


def _tp(arm: ArmReading) -> int:
    return arm.facts.tp or 1


def _steps(arm: ArmReading) -> float:
    return float(arm.facts.num_draft_steps or 1)


def _context(arm: ArmReading) -> int:
    return arm.facts.context or 0


def _rate(arm: ArmReading) -> float:
    return arm.speculative_tok_s or 0.0
