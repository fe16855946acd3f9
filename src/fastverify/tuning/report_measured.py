"""What a report derives from measurements alone: bars, credit, message sizes, draft lengths.

Every number goes through diagnosis/ and the cost model, so that the page and the plan cannot disagree. Knows no
campaign and no ledger.
"""

from __future__ import annotations

from fastverify.diagnosis.cycle_cost import CycleCost, cost_of_arm
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement
from fastverify.servers.server import Setting
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.cost_model import CostModel
from fastverify.tuning.experiments import DRAFT_LENGTHS
from fastverify.tuning.report_types import AcceptanceCurve, Bar, Decomposition, DraftLength, End, MessageMark

_PASSES = (("plain", "plain", "plain pass"), ("speculative", "verify", "verify pass"))


def bars_of(measurement: ServerMeasurement, end: End) -> list[Bar]:
    """One bar per measured arm, plain first."""
    arms = (measurement.arms.get(arm) for arm in ("plain", "speculative"))
    return [_bar(cost_of_arm(arm), end) for arm in arms if arm is not None]


def _bar(cost: CycleCost, end: End) -> Bar:
    return Bar(
        end=end, arm=cost.arm, phases_ms=cost.phases_ms, cycle_ms=cost.total_ms, accept_length=cost.accept_length
    )


def decompose(before: ServerMeasurement, after: ServerMeasurement) -> Decomposition | None:
    """Split the gain of speculative decoding into what plain decoding gained as well and the rest.

    None where an end has no speculative arm: then there is no gain to give credit for.
    """
    if "speculative" not in before.arms or "speculative" not in after.arms:
        return None
    old, new = (cost_of_arm(one.arms["plain"]) for one in (before, after))
    total = after.arms["speculative"].tok_s / before.arms["speculative"].tok_s
    shared = new.tok_s / old.tok_s
    saved = [cost.phases_ms.get("plain_all_reduce") for cost in (old, new)]
    return Decomposition(
        total=total,
        shared=shared,
        speculation=total / shared,
        plain_saved_ms=old.total_ms - new.total_ms,
        plain_saved_all_reduce_ms=None if saved[0] is None or saved[1] is None else saved[0] - saved[1],
    )


def message_marks(measurement: ServerMeasurement) -> list[MessageMark]:
    """Message size of an all-reduce in the plain pass and in the verify pass, where the server counted them."""
    return [
        MessageMark(label=label, num_bytes=size)
        for arm, phase, label in _PASSES
        if arm in measurement.arms and (size := _message_bytes(measurement.arms[arm], phase))
    ]


def _message_bytes(arm: ArmMeasurement, phase: str) -> float:
    """The size that most all-reduces of a pass have; 0 where none were counted."""
    costs = [cost for cost in arm.collectives if cost.phase == phase and cost.op.startswith("all_reduce")]
    most = max(costs, key=lambda cost: cost.per_pass, default=None)
    return most.bytes_per_pass / most.per_pass if most and most.per_pass else 0.0


def acceptance_curve(measurement: ServerMeasurement, table: AllReduceTable, end: End) -> AcceptanceCurve | None:
    """Per-position acceptance, and for a chain the cost model's cycle and speedup of every draft length."""
    arm = measurement.arms.get("speculative")
    if arm is None or "plain" not in measurement.arms or not arm.correct_drafts_per_position:
        return None
    model = CostModel(measurement, table)
    is_chain = model.reference.has_draft_model and model.reference.is_chain
    return AcceptanceCurve(
        end=end,
        correct_drafts_per_position=arm.correct_drafts_per_position,
        points=tuple(_draft_length(model, k) for k in DRAFT_LENGTHS) if is_chain else (),
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


def changed_settings(
    before: ServerMeasurement, after: ServerMeasurement
) -> dict[str, tuple[Setting | None, Setting | None]]:
    """Resolved settings that differ, in the order in which the server reports them."""
    names = dict.fromkeys([*after.settings, *before.settings])
    pairs = {name: (before.settings.get(name), after.settings.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
