"""Chooses the next experiment: greedy forward selection over the plan, with predictions from the newest measurement.

Every experiment is predicted on top of the best settings so far. One that cannot win even at the high end of its
interval waits, since a later winner may change that; what still waits at the end is skipped with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastverify.servers.server import Setting
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.cost_model import CostModel, Prediction
from fastverify.tuning.experiments import Experiment
from fastverify.tuning.knobs import Knobs, merge_settings
from fastverify.tuning.plan import refusal, score

# It says what every trial measures anyway (the plain arm), and ends all others; so it comes last.
LAST = "drafter.none"


@dataclass(frozen=True)
class Candidate:
    """An experiment with its prediction on top of the best settings; `against` says why it should wait, if so."""

    experiment: Experiment
    prediction: Prediction
    against: str | None

    @property
    def score(self) -> float:
        """Predicted gain x probability / effort."""
        return score(self.experiment, self.prediction)


def candidates(
    pending: Iterable[Experiment], kept: Sequence[str], model: CostModel, table: AllReduceTable
) -> tuple[Candidate, ...]:
    """Every pending experiment, the most promising first; those that should wait come last."""
    found = []
    for experiment in pending:
        prediction = model.predict(experiment.changes)
        found.append(Candidate(experiment, prediction, _against(experiment, prediction, kept, model, table)))
    return tuple(sorted(found, key=lambda one: (one.against is not None, one.experiment.id == LAST, -one.score)))


def is_simpler(
    candidate: Mapping[str, Setting], current: Mapping[str, Setting], baseline: Mapping[str, Setting]
) -> bool:
    """Which of two settings to prefer at equal speed: no drafter, a chain, fewer drafts, fewer changes."""
    return _complexity(candidate, baseline) < _complexity(current, baseline)


def _against(
    experiment: Experiment, prediction: Prediction, kept: Sequence[str], model: CostModel, table: AllReduceTable
) -> str | None:
    refused = refusal(experiment, table)
    if refused:
        return refused
    conflicting = [name for name in experiment.conflicts if name in kept]
    if conflicting:
        return f"means nothing after {', '.join(conflicting)} was kept"
    if experiment.changes_nothing(model.settings):
        return "the best settings are these already"
    speedup = prediction.speedup
    if speedup.high <= 1.0 + model.noise:
        return (
            f"predicted {speedup.low:.2f} to {speedup.high:.2f} times the best speed so far: no gain beyond the noise "
            f"of {model.noise * 100:.1f} %"
        )
    return None


def _complexity(settings: Mapping[str, Setting], baseline: Mapping[str, Setting]) -> tuple[bool, bool, int, int]:
    knobs = Knobs.from_settings(settings)
    merged = merge_settings(baseline, settings)
    num_changes = sum(merged[name] != baseline.get(name) for name in merged)
    return (knobs.drafter != "none", not knobs.is_chain, knobs.num_proposed_drafts, num_changes)
