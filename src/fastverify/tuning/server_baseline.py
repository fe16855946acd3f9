"""A report as the measurement that the cost model starts from: what was told, and estimates for what was not.

The cost model needs both arms split into phases and the collectives of each pass. A report rarely has them, so gaps are
filled from the identities, published all-reduce times and shares of public measurements. Each estimate is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.plain_split import plain_all_reduce_ms
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules.arms import estimated_verify_ms
from fastverify.servers.measurement import ArmMeasurement, CollectiveCost, ServerMeasurement
from fastverify.servers.server import Arm, Setting
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.machine_table import BackendShare, machine_table
from fastverify.units import US_PER_MS

REFERENCE_BACKEND = "present"
# Source: vllm#45258 measured 18 % of a step in drafts; the SGLang H200 run 12 % in drafts and 7 % in the extend pass.
OUTSIDE_SHARES = {"draft": 0.55, "extend": 0.25, "host": 0.2}
# Arbitrary: no phase that was not measured is taken for nearly the whole.
MAX_SHARE = 0.9
# An EAGLE layer: attention, MLP and embedding; one gather of logits per draft step.
DRAFT_ALL_REDUCES_PER_STEP = 3
# Arbitrary: as many passes as a minute of one request has.
ASSUMED_PASSES = 500


@dataclass(frozen=True)
class Baseline:
    """`estimates` are sentences, one for each thing that was not told."""

    measurement: ServerMeasurement
    table: AllReduceTable
    estimates: tuple[str, ...]


@dataclass
class _Estimates:
    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        if text not in self.texts:
            self.texts.append(text)


def baseline_of(report: Report, shares: Mapping[str, BackendShare]) -> Baseline | None:
    """Baseline of the main arm; None where a rate or the acceptance length is missing.

    `shares` are backends of the catalogue that are only known relative to the present one.
    """
    arm = report.main_arm
    if arm.verdict is None or arm.plain_tok_s is None or arm.speculative_tok_s is None:
        return None
    estimates = _Estimates()
    plain = _plain_arm(report, arm, estimates)
    speculative = _speculative_arm(report, arm, plain, estimates)
    measurement = ServerMeasurement(
        requested_settings={},
        settings=_settings(arm),
        arms={"plain": plain, "speculative": speculative},
        num_tokens=1,
        repeats=1,
        concurrency=arm.batch,
        elapsed_s=0.0,
    )
    present = {
        int(cost.bytes_per_pass / cost.per_pass): cost.ms_per_pass * US_PER_MS / cost.per_pass
        for measured in (plain, speculative)
        for cost in measured.collectives
        if cost.op == "all_reduce"
    }
    table = machine_table(report, arm, present, shares, reference=REFERENCE_BACKEND)
    return Baseline(measurement, table, tuple(estimates.texts))


def _settings(arm: ArmReading) -> dict[str, Setting]:
    facts = arm.facts
    rows = arm.rows or (facts.num_draft_steps or 3) + 1
    is_ngram = (facts.method or "").lower().startswith(("ngram", "suffix"))
    return {
        "drafter": "ngram" if is_ngram else "eagle3",
        "draft_shape": "tree" if arm.is_tree else "chain",
        "top_k": facts.top_k or (3 if arm.is_tree else 1),
        "num_draft_steps": facts.num_draft_steps or rows - 1,
        "num_proposed_drafts": rows - 1,
        "comm_backend": REFERENCE_BACKEND,
        "fuse_rmsnorm": False,
        "draft_placement": "sharded" if (facts.tp or 1) > 1 else "replicated",
        "draft_token_exchange": "gather_logits",
        "tp_size": facts.tp or 1,
    }


def _plain_arm(report: Report, arm: ArmReading, estimates: _Estimates) -> ArmMeasurement:
    total_ms = arm.plain_ms or 0.0
    split = plain_all_reduce_ms(report, arm) if (arm.facts.tp or 1) > 1 else None
    all_reduce_ms = split.mid if split is not None else 0.0
    if split is not None and split.low != split.high:
        estimates.add(f"All-reduces of a plain step: {split.low:.1f} to {split.high:.1f} ms, from {split.source}.")
    anatomy = {"plain_compute": total_ms - all_reduce_ms, "plain_all_reduce": all_reduce_ms}
    collectives = _collectives(report, arm, "plain", arm.batch, all_reduce_ms)
    return _measured("plain", arm, arm.plain_tok_s or 0.0, total_ms, anatomy, collectives)


def _speculative_arm(report: Report, arm: ArmReading, plain: ArmMeasurement, estimates: _Estimates) -> ArmMeasurement:
    cost = arm.speculative_cost
    assert cost is not None, "a verdict has both costs"
    told = {name: ms for name, ms in cost.phases_ms.items() if name not in ("gap", "outside_verify", "verify")}
    verify_ms = cost.verify_ms
    if verify_ms is None:
        room_ms = MAX_SHARE * (cost.total_ms - sum(told.values()))
        verify_ms = min(estimated_verify_ms(report, arm, plain.cycle_ms or 0.0), room_ms)
        estimates.add(f"Verify pass: {verify_ms:.1f} ms, a plain step with more rows; a trace tells.")
    if "verify_all_reduce" not in told:
        all_reduce_ms = min(_verify_all_reduce_ms(report, arm, plain), MAX_SHARE * verify_ms)
        told |= {"verify_all_reduce": all_reduce_ms, "verify_compute": verify_ms - all_reduce_ms}
        if all_reduce_ms:
            estimates.add(f"All-reduces of a verify pass: {all_reduce_ms:.1f} ms, the plain step's at longer messages.")
    told.setdefault("verify_compute", verify_ms - told["verify_all_reduce"])
    rest_ms = cost.total_ms - sum(told.values())
    missing = {name: share for name, share in OUTSIDE_SHARES.items() if name not in told}
    if rest_ms > 0 and missing:
        whole = sum(missing.values())
        told |= {name: rest_ms * share / whole for name, share in missing.items()}
        estimates.add(f"The {rest_ms:.1f} ms outside the verify pass: {', '.join(missing)} in published proportions.")
    anatomy = {name: ms for name, ms in told.items() if ms > 0}
    verify = _collectives(report, arm, "verify", arm.batch * (arm.rows or 1), anatomy.get("verify_all_reduce", 0.0))
    collectives = (*verify, *_draft_collectives(report, arm, plain, anatomy))
    return _measured("speculative", arm, arm.speculative_tok_s or 0.0, cost.total_ms, anatomy, collectives)


def _verify_all_reduce_ms(report: Report, arm: ArmReading, plain: ArmMeasurement) -> float:
    """The plain step's all-reduces, scaled by how published times grow with the message."""
    plain_ms = plain.anatomy_ms.get("plain_all_reduce", 0.0)
    sizes = report.message_bytes(arm, plain=True), report.message_bytes(arm)
    if not plain_ms or sizes[0] is None or sizes[1] is None:
        return plain_ms
    small, large = report.expected(arm, sizes[0]), report.expected(arm, sizes[1])
    return plain_ms * large.us / small.us if small is not None and large is not None else plain_ms


def _collectives(
    report: Report, arm: ArmReading, phase: str, rows: int, all_reduce_ms: float
) -> tuple[CollectiveCost, ...]:
    count = arm.facts.all_reduces_per_verify or report.model.all_reduces_per_pass
    size = report.model.message_bytes(rows)
    if not all_reduce_ms or count is None:
        return ()
    num_bytes = size if size is not None else rows
    return (
        CollectiveCost(
            phase=phase, op="all_reduce", per_pass=count, bytes_per_pass=count * num_bytes, ms_per_pass=all_reduce_ms
        ),
    )


def _draft_collectives(
    report: Report, arm: ArmReading, plain: ArmMeasurement, anatomy: Mapping[str, float]
) -> tuple[CollectiveCost, ...]:
    """Those of a draft model split over the ranks, each as long as one of the plain step, within its phase."""
    each_ms = next((c.ms_per_pass / c.per_pass for c in plain.collectives), 0.0)
    size = report.model.message_bytes(arm.batch)
    if not each_ms or size is None:
        return ()
    steps = arm.facts.num_draft_steps or (arm.rows or 4) - 1
    costs = []
    for phase, passes in (("draft", steps), ("extend", 1)):
        count = DRAFT_ALL_REDUCES_PER_STEP * passes
        ms = min(count * each_ms, MAX_SHARE * anatomy.get(phase, 0.0))
        if ms > 0:
            costs.append(
                CollectiveCost(
                    phase=phase, op="all_reduce", per_pass=count, bytes_per_pass=count * size, ms_per_pass=ms
                )
            )
    return tuple(costs)


def _survival(arm: ArmReading, num_drafts: int) -> tuple[float, ...]:
    """Per-position acceptance as told, or the geometric one with the same acceptance length (arXiv:2211.17192)."""
    if arm.facts.accept_rate_per_position:
        return arm.facts.accept_rate_per_position
    wanted = (arm.accept_length or 1.0) - 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        alpha = (low + high) / 2
        low, high = (alpha, high) if sum(alpha**i for i in range(1, num_drafts + 1)) < wanted else (low, alpha)
    return tuple(low**i for i in range(1, num_drafts + 1))


def _measured(
    kind: Arm,
    arm: ArmReading,
    tok_s: float,
    cycle_ms: float,
    anatomy: dict[str, float],
    collectives: tuple[CollectiveCost, ...],
) -> ArmMeasurement:
    is_plain = kind == "plain"
    num_drafts = (arm.rows or 4) - 1
    count = arm.facts.all_reduces_per_verify
    return ArmMeasurement(
        arm=kind,
        tok_s=tok_s,
        tok_s_samples=(tok_s,),
        output_token_ids={},
        unstable_prompt_ids=(),
        batch=arm.batch,
        num_cycles=ASSUMED_PASSES,
        cycle_ms=cycle_ms,
        anatomy_ms=anatomy,
        accept_length=1.0 if is_plain else arm.accept_length or 1.0,
        correct_drafts_per_position=() if is_plain else _survival(arm, num_drafts),
        num_proposed_drafts=0.0 if is_plain else float(num_drafts),
        collectives=collectives,
        all_reduces_per_verify=None if is_plain or count is None else float(count),
        samples=(),
    )
