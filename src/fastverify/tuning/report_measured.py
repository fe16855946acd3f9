"""What a report derives from measurements alone: both ends' numbers, bars, message sizes, draft lengths, and credit.

Every number goes through diagnosis/, so that the page and the plan cannot disagree. Knows no campaign and no ledger.
"""

from __future__ import annotations

from fastverify.diagnosis.cycle_cost import CycleCost
from fastverify.diagnosis.diagnose import Diagnosis
from fastverify.diagnosis.verdict import Verdict
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.cost_model import CostModel
from fastverify.tuning.report_types import Acceptance, Bar, Decomposition, DraftLength, End, MessageMark, Side

# The catalogue's chain lengths.
DRAFT_LENGTHS = range(1, 9)
_ALL_REDUCE_PHASES = ("plain_all_reduce", "verify_all_reduce")


def side_of(verdict: Verdict) -> Side:
    """The stable, machine-readable numbers of one end."""
    return Side(
        accept_length=verdict.accept_length,
        plain_tok_s=verdict.plain_tok_s,
        speculative_tok_s=verdict.speculative_tok_s,
        speedup=verdict.speedup,
        break_even_accept_length=verdict.break_even_accept_length,
        verify_ms=verdict.verify_ms,
        verify_all_reduce_ms=verdict.verify_all_reduce_ms,
        all_reduces_per_verify=verdict.all_reduces_per_verify,
    )


def bars_of(diagnosis: Diagnosis, end: End) -> list[Bar]:
    """Plain and speculative bar of one end."""
    return [_bar(cost, end) for cost in (diagnosis.plain, diagnosis.speculative)]


def _bar(cost: CycleCost, end: End) -> Bar:
    return Bar(
        side=end, arm=cost.arm, phases_ms=cost.phases_ms, cycle_ms=cost.total_ms, accept_length=cost.accept_length
    )


def decompose(before: Diagnosis, after: Diagnosis) -> Decomposition:
    """Split the gain of speculative decoding into what plain decoding gained as well and the rest."""
    total = after.verdict.speculative_tok_s / before.verdict.speculative_tok_s
    shared = after.verdict.plain_tok_s / before.verdict.plain_tok_s
    saved = [_all_reduce_ms(diagnosis.plain) for diagnosis in (before, after)]
    return Decomposition(
        total=total,
        shared=shared,
        speculation=total / shared,
        plain_saved_ms=before.plain.total_ms - after.plain.total_ms,
        plain_saved_all_reduce_ms=None if saved[0] is None or saved[1] is None else saved[0] - saved[1],
    )


def _all_reduce_ms(cost: CycleCost) -> float | None:
    known = [cost.phases_ms[phase] for phase in _ALL_REDUCE_PHASES if phase in cost.phases_ms]
    return sum(known) if known else None


def message_marks(measurement: ServerMeasurement) -> list[MessageMark]:
    """Message size of an all-reduce in the plain pass and in the verify pass, where the server counted them."""
    marks = []
    for arm, phase, label in (("plain", "plain", "plain pass"), ("speculative", "verify", "verify pass")):
        if arm in measurement.arms:
            marks += [MessageMark(label=label, num_bytes=size) for size in _sizes(measurement.arms[arm], phase)]
    return marks


def _sizes(arm: ArmMeasurement, phase: str) -> list[float]:
    """The size that most all-reduces of a pass have."""
    costs = [cost for cost in arm.collectives if cost.phase == phase and cost.op.startswith("all_reduce")]
    if not costs:
        return []
    most = max(costs, key=lambda cost: cost.per_pass)
    return [most.bytes_per_pass / most.per_pass] if most.per_pass else []


def acceptance_of(measurement: ServerMeasurement, table: AllReduceTable) -> Acceptance | None:
    """Per-position acceptance, and for a chain the cost model's cycle and speedup of every draft length."""
    arm = measurement.arms.get("speculative")
    if arm is None or not arm.correct_drafts_per_position:
        return None
    shares = arm.correct_drafts_per_position
    if "plain" not in measurement.arms:
        return Acceptance(correct_drafts_per_position=shares, curve=(), chosen=None, plain_ms=None)
    model = CostModel(measurement, table)
    is_chain = model.reference.has_draft_model and model.reference.is_chain
    return Acceptance(
        correct_drafts_per_position=shares,
        curve=tuple(_draft_length(model, k) for k in DRAFT_LENGTHS) if is_chain else (),
        chosen=model.reference.num_proposed_drafts if is_chain else None,
        plain_ms=model.plain_cost.total_ms,
    )


def _draft_length(model: CostModel, num_drafts: int) -> DraftLength:
    predicted = model.predict(model.chain_changes(num_drafts)).speculative
    assert predicted is not None, "a chain has a speculative arm"
    accept_length, cycle_ms = predicted.accept_length.mid, predicted.cycle_ms.mid
    return DraftLength(
        num_proposed_drafts=num_drafts,
        accept_length=accept_length,
        cycle_ms=cycle_ms,
        speedup=accept_length * model.plain_cost.total_ms / cycle_ms,
    )
