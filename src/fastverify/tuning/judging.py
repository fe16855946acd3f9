"""Judges one trial: engagement, gates, speed against the settings it was tried on, and whether it is kept.

Order matters: a knob that did nothing proves nothing, a wrong output has no speed. A gain must exceed the noise of the
baseline repeated; within it, the simpler settings win unless they look slower. Launches nothing and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Setting
from fastverify.tuning import gates, priors
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.cost_model import Prediction
from fastverify.tuning.engagement import prove
from fastverify.tuning.experiments import Experiment
from fastverify.tuning.gates import GateResult, SelfNoise
from fastverify.tuning.interval import Interval
from fastverify.tuning.outcome import Outcome
from fastverify.tuning.selection import is_simpler
from fastverify.tuning.trial import EngagementProof, MeasuredEffect, Run, TrialResult, measured_effect

# Drafters whose acceptance length is a guess: nothing to hold a measured one against.
_GUESSED_ACCEPTANCE = {priors.TREE_GAIN.name, priors.NGRAM_ACCEPT_LENGTH.name}


# Arbitrary: what simplicity may cost. On a restless machine a loss within the noise is still likelier a loss than not.
MAX_TIE = 0.03


@dataclass(frozen=True)
class TrialContext:
    """What a trial is held against. `base`: the best settings so far; `baseline`: the first measurement."""

    experiment: Experiment
    prediction: Prediction
    base: ServerMeasurement
    baseline: ServerMeasurement
    noise: SelfNoise
    table: AllReduceTable
    base_settings: Mapping[str, Setting]
    settings: Mapping[str, Setting]
    baseline_settings: Mapping[str, Setting]


def judge_trial(run: Run, context: TrialContext | None) -> tuple[Outcome, TrialResult]:
    """Outcome and record of a run; without a context (a baseline) a run that was measured is `ok`."""
    if run.measurement is None or context is None:
        return run.outcome, TrialResult(
            reason=run.reason.partition("\n")[0],
            detail=run.reason,
            measurement=run.measurement,
            elapsed_s=run.elapsed_s,
        )
    proof = prove(run.measurement, context.experiment.changes, context.experiment.counted)
    result = TrialResult(
        proof=EngagementProof(engaged=proof.engaged, text=proof.text),
        measurement=run.measurement,
        measured=measured_effect(run.measurement, context.base),
        elapsed_s=run.elapsed_s,
    )
    if proof.engaged is False:
        return "no_engagement", result.model_copy(update={"reason": proof.text})
    checked = check_gates(run.measurement, context)
    result = result.model_copy(update={"gates": checked})
    failed = gates.failed_gate(checked)
    if failed is not None:
        return gates.FAILURES[failed.gate], result.model_copy(update={"reason": failed.detail})
    assert result.measured is not None, "set above"
    simpler = is_simpler(context.settings, context.base_settings, context.baseline_settings)
    outcome, kept, reason = decide(result.measured, _noise(run.measurement, context), simpler=simpler)
    return outcome, result.model_copy(update={"kept": kept, "reason": reason})


def check_gates(measurement: ServerMeasurement, context: TrialContext) -> tuple[GateResult, ...]:
    """Every gate in order; all are recorded, the first failure decides."""
    backend = str(measurement.settings.get("comm_backend", "auto"))
    return (
        gates.check_collective(backend, context.table),
        gates.check_outputs(measurement, context.baseline, context.noise, context.experiment.risk),
        gates.check_acceptance(measurement, _expected_accept_length(context), context.noise),
        gates.check_degenerate(measurement, context.baseline),
    )


def _expected_accept_length(context: TrialContext) -> Interval | None:
    if context.experiment.same_drafts and "speculative" in context.base.arms:
        return Interval.exact(context.base.arms["speculative"].accept_length)
    speculative = context.prediction.speculative
    if speculative is None or _GUESSED_ACCEPTANCE & {prior.name for prior in context.prediction.priors}:
        return None
    return speculative.accept_length


def _noise(measurement: ServerMeasurement, context: TrialContext) -> float:
    """What launches of such settings differ by, or twice the error within either launch where that is more."""
    within = math.hypot(gates.launch_noise(measurement), gates.launch_noise(context.base))
    between = gates.tok_s_noise(context.noise, of_baseline=context.base_settings == context.baseline_settings)
    return max(between, 2.0 * within)


def decide(measured: MeasuredEffect, noise: float, *, simpler: bool) -> tuple[Outcome, bool, str]:
    """Outcome, whether it is kept, and why, from its speedup alone; `simpler` than the best settings so far."""
    gain = measured.speedup - 1.0
    text = f"{measured.speedup:.2f} times the best speed so far ({measured.tok_s:.1f} tok/s)"
    if gain > noise:
        return "ok", True, text
    if gain < -noise:
        return "slower", False, text
    replaces = simpler and gain >= -MAX_TIE
    tie = f"{text}, within the noise of {noise * 100:.1f} %: "
    return "ok", replaces, tie + ("the simpler settings replace the others" if replaces else "the settings so far stay")
