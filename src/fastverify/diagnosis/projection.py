"""What-if: phases of the measured cycle with other lengths. What lies outside them stays, and plain decoding gains too.

A claim of "acceptance length over the new verify time" forgets both. Only arithmetic on what was told; the gain of the
plain arm is a range, from plain_split.py.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.plain_split import plain_all_reduce_ms
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.reported import Projection
from fastverify.units import MS_PER_S

_PHASE_FIELDS = ("verify_ms", "verify_all_reduce_ms", "draft_ms")


class ProjectedArms(BaseModel):
    """Ranges are (low, high). `speedup` is speculative over plain, both after the change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verify_ms: float | None
    outside_verify_ms: float | None
    cycle_ms: float
    tok_s: float
    claimed_tok_s: float | None
    plain_tok_s: tuple[float, float] | None
    speedup: tuple[float, float] | None
    text: str


def project(report: Report, arm: ArmReading, wanted: Projection) -> ProjectedArms | None:
    """The arm with the wanted phases; None where the arm's cycle is not known well enough to change them."""
    cost = arm.speculative_cost
    if cost is None or not _can_change(arm, wanted):
        return None
    old_verify_ms = cost.verify_ms
    all_reduce_ms = cost.phases_ms.get("verify_all_reduce")
    new_verify_ms, new_all_reduce_ms = _new_verify(wanted, old_verify_ms, all_reduce_ms)
    saved_ms = (old_verify_ms or 0.0) - (new_verify_ms or 0.0)
    if wanted.draft_ms is not None:
        saved_ms += cost.phases_ms["draft"] - wanted.draft_ms
    cycle_ms = cost.total_ms - saved_ms
    accept_length = wanted.accept_length or cost.accept_length
    # Rates as they came: of the whole batch, unless the report says otherwise.
    requests = 1 if arm.facts.rates == "per_request" else arm.batch
    tok_s = accept_length * MS_PER_S / cycle_ms
    plain = _plain_tok_s(report, arm, all_reduce_ms, new_all_reduce_ms)
    outside_ms = None if old_verify_ms is None else cost.total_ms - old_verify_ms
    return ProjectedArms(
        verify_ms=new_verify_ms,
        outside_verify_ms=outside_ms,
        cycle_ms=cycle_ms,
        tok_s=tok_s * requests,
        claimed_tok_s=wanted.claimed_tok_s,
        plain_tok_s=None if plain is None else (plain[0] * requests, plain[1] * requests),
        speedup=None if plain is None else (tok_s / plain[1], tok_s / plain[0]),
        text=_text(cycle_ms, tok_s * requests, outside_ms, plain, tok_s, wanted),
    )


def _can_change(arm: ArmReading, wanted: Projection) -> bool:
    cost = arm.speculative_cost
    assert cost is not None, "checked by the caller"
    needs_verify = wanted.verify_ms is not None and cost.verify_ms is None
    needs_all_reduce = wanted.verify_all_reduce_ms is not None and "verify_all_reduce" not in cost.phases_ms
    needs_draft = wanted.draft_ms is not None and "draft" not in cost.phases_ms
    return not (needs_verify or needs_all_reduce or needs_draft)


def _new_verify(
    wanted: Projection, verify_ms: float | None, all_reduce_ms: float | None
) -> tuple[float | None, float | None]:
    """Verify pass and its all-reduces after the change; a shorter pass is taken to have shorter all-reduces."""
    if verify_ms is None:
        return None, None
    if wanted.verify_all_reduce_ms is not None and all_reduce_ms is not None:
        new_ms = verify_ms - all_reduce_ms + wanted.verify_all_reduce_ms
        return (wanted.verify_ms or new_ms), wanted.verify_all_reduce_ms
    if wanted.verify_ms is None:
        return verify_ms, all_reduce_ms
    if all_reduce_ms is None:
        return wanted.verify_ms, None
    return wanted.verify_ms, max(all_reduce_ms - (verify_ms - wanted.verify_ms), 0.0)


def _plain_tok_s(
    report: Report, arm: ArmReading, all_reduce_ms: float | None, new_all_reduce_ms: float | None
) -> tuple[float, float] | None:
    """Plain rate of one request, if its all-reduces get faster by the same factor."""
    if arm.plain_ms is None or not all_reduce_ms or new_all_reduce_ms is None:
        return None
    bounds = plain_all_reduce_ms(report, arm)
    if bounds is None:
        return None
    saved_share = 1.0 - new_all_reduce_ms / all_reduce_ms
    rates = [MS_PER_S / (arm.plain_ms - saved_share * ms) for ms in (bounds.low, bounds.high)]
    return min(rates), max(rates)


def _text(
    cycle_ms: float,
    total_tok_s: float,
    outside_ms: float | None,
    plain: tuple[float, float] | None,
    tok_s: float,
    wanted: Projection,
) -> str:
    parts = [f"The cycle would be {cycle_ms:.1f} ms, which is {total_tok_s:.0f} tok/s"]
    if wanted.claimed_tok_s is not None:
        parts[0] += f", not {wanted.claimed_tok_s:.0f}"
    if outside_ms is not None:
        parts.append(f"the {outside_ms:.1f} ms outside the verify pass stay")
    if plain is not None:
        parts.append(
            f"plain decoding gains too, to {plain[0]:.0f} to {plain[1]:.0f} tok/s, so that the speedup would be "
            f"{tok_s / plain[1]:.2f} to {tok_s / plain[0]:.2f}"
        )
    return "; ".join(parts) + "."
