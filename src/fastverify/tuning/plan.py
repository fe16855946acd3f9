"""The plan: what is wrong, and the experiments ranked by predicted gain x probability / effort.

A plan is a prediction. It is written before anything is tried, says what it assumed and what would settle that, and is
kept beside what was measured later. It launches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.diagnose import Diagnosis, diagnose
from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Setting
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.cost_model import DEFAULT_NOISE, CostModel, Prediction
from fastverify.tuning.experiments import Experiment, Risk
from fastverify.tuning.interval import Interval

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PredictedEffect(_Record):
    """What a trial is expected to measure. `speedup` is over the speculative rate of the settings it starts from."""

    speedup: Interval
    plain_speedup: Interval
    tok_s: Interval
    plain_tok_s: Interval
    accept_length: Interval | None
    """None where the settings have no drafter."""

    @classmethod
    def of(cls, prediction: Prediction) -> PredictedEffect:
        """The numbers of a prediction that are kept."""
        return cls(
            speedup=prediction.speedup,
            plain_speedup=prediction.plain_speedup,
            tok_s=prediction.tok_s,
            plain_tok_s=prediction.plain.tok_s,
            accept_length=prediction.speculative.accept_length if prediction.speculative else None,
        )


class PlannedExperiment(_Record):
    """An experiment with its prediction from the baseline. `score` orders the list."""

    id: str
    title: str
    why: str
    changes: dict[str, Setting]
    exclusive_group: str | None
    conflicts: tuple[str, ...]
    risk: Risk
    effort_min: float
    probability: float
    predicted: PredictedEffect
    score: float
    refusal: str | None
    """Why it cannot be tried here; None where it can."""


class Assumption(_Record):
    """A prior that at least one prediction rests on."""

    name: str
    text: str
    value: Interval
    source: str
    settles: str


class DraftLengthPoint(_Record):
    """The curve of chain lengths, from the per-position acceptance of one run."""

    num_drafts: int
    accept_length: Interval
    tok_s: Interval
    one_more_pays: bool


class Plan(_Record):
    """Everything that `eagle-fast-verify.md` and `plan.json` say."""

    schema_version: int = SCHEMA_VERSION
    created_at: str
    settings: dict[str, Setting]
    diagnosis: Diagnosis
    experiments: tuple[PlannedExperiment, ...]
    draft_lengths: tuple[DraftLengthPoint, ...]
    """Empty where the drafts are not a chain of a draft model."""
    assumptions: tuple[Assumption, ...]
    noise: float


def make_plan(
    measurement: ServerMeasurement,
    table: AllReduceTable,
    catalogue: Sequence[Experiment],
    *,
    noise: float = DEFAULT_NOISE,
) -> Plan:
    """Plan from a measured baseline with both arms."""
    model = CostModel(measurement, table, noise=noise)
    predictions = [(experiment, model.predict(experiment.changes)) for experiment in catalogue]
    planned = [_planned(experiment, prediction, table) for experiment, prediction in predictions]
    return Plan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=model.settings,
        diagnosis=diagnose(measurement, source="baseline trial"),
        experiments=tuple(sorted(planned, key=lambda entry: (entry.refusal is not None, -entry.score))),
        draft_lengths=_draft_lengths(model),
        assumptions=_assumptions([prediction for _, prediction in predictions]),
        noise=noise,
    )


def score(experiment: Experiment, prediction: Prediction) -> float:
    """Expected gain per minute: (speedup - 1) x probability / effort; a loss stays a loss whatever it costs."""
    return (prediction.speedup.mid - 1.0) * experiment.probability / experiment.effort_min


def refusal(experiment: Experiment, table: AllReduceTable) -> str | None:
    """Why the benchmark speaks against an experiment: its backend does not run here, or sums wrongly."""
    backend = experiment.changes.get("comm_backend")
    if backend is None:
        return None
    wrong = table.wrong_sizes(str(backend))
    if wrong:
        return f"{backend} gives wrong sums at {', '.join(map(str, wrong))} bytes"
    reason = table.reason_against(str(backend))
    return f"{backend} does not run here: {reason}" if reason else None


def _planned(experiment: Experiment, prediction: Prediction, table: AllReduceTable) -> PlannedExperiment:
    return PlannedExperiment(
        id=experiment.id,
        title=experiment.title,
        why=experiment.why,
        changes=dict(experiment.changes),
        exclusive_group=experiment.exclusive_group,
        conflicts=experiment.conflicts,
        risk=experiment.risk,
        effort_min=experiment.effort_min,
        probability=experiment.probability,
        predicted=PredictedEffect.of(prediction),
        score=score(experiment, prediction),
        refusal=refusal(experiment, table),
    )


def _assumptions(predictions: Sequence[Prediction]) -> tuple[Assumption, ...]:
    priors = {prior.name: prior for prediction in predictions for prior in prediction.priors}
    return tuple(
        Assumption(name=name, text=prior.text, value=prior.value, source=prior.source, settles=prior.settles)
        for name, prior in sorted(priors.items())
    )


def _draft_lengths(model: CostModel) -> tuple[DraftLengthPoint, ...]:
    if not (model.reference.has_draft_model and model.reference.is_chain):
        return ()
    points = []
    for num_drafts in range(1, 9):
        predicted = model.predict(model.chain_changes(num_drafts)).speculative
        assert predicted is not None, "a chain has a speculative arm"
        points.append(
            DraftLengthPoint(
                num_drafts=num_drafts,
                accept_length=predicted.accept_length,
                tok_s=predicted.tok_s,
                one_more_pays=model.one_more_draft_pays(num_drafts),
            )
        )
    return tuple(points)
