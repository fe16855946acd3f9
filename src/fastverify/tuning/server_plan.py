"""The plan for a server that somebody else runs: its catalogue, gated, predicted for both arms, ranked.

Predictions are the cost model's, from the report's baseline. Where the report is too thin for one, experiments are
listed by what they cost to try, and the measurements that would thicken it come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.answer import Answer
from fastverify.diagnosis.report import Report
from fastverify.servers.server import Setting
from fastverify.tuning import priors
from fastverify.tuning.catalogue.entry import SERVERS, CatalogueEntry, Kind, Risk, catalogue_of
from fastverify.tuning.catalogue.gating import refusal_of, remarks_of
from fastverify.tuning.cost_model import DEFAULT_NOISE, CostModel, Prediction
from fastverify.tuning.interval import Interval
from fastverify.tuning.knobs import Knobs, merge_settings
from fastverify.tuning.machine_table import BackendShare
from fastverify.tuning.plan import Assumption, PredictedEffect
from fastverify.tuning.server_baseline import Baseline, baseline_of

SCHEMA_VERSION = 1
# Findings name experiments; one that follows from a finding is this much likelier to be real.
FINDING_BONUS = 1.3


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerExperiment(_Record):
    """One experiment. `predicted` is None for measurements and where the report is too thin."""

    id: str
    title: str
    why: str
    kind: Kind
    flags: dict[str, Setting | None]
    speculative_config: dict[str, Any]
    env: dict[str, str]
    exclusive_group: str | None
    conflicts: tuple[str, ...]
    risk: Risk
    effort_min: float
    probability: float
    predicted: PredictedEffect | None
    score: float
    refusal: str | None
    remarks: tuple[str, ...]
    follows_from: tuple[str, ...]
    """Rules whose findings name it."""
    engagement: str
    undo: str
    source: str


class Combination(_Record):
    """The best of every exclusive group at once, computed again: savings of single experiments do not add up."""

    ids: tuple[str, ...]
    predicted: PredictedEffect


class ServerPlan(_Record):
    """`experiments` are ordered: possible ones by score, then refused ones."""

    schema_version: int = SCHEMA_VERSION
    created_at: str
    server: str
    server_version: str | None
    experiments: tuple[ServerExperiment, ...]
    together: Combination | None
    estimates: tuple[str, ...]
    assumptions: tuple[Assumption, ...]

    @property
    def possible(self) -> tuple[ServerExperiment, ...]:
        """Experiments that nothing speaks against."""
        return tuple(experiment for experiment in self.experiments if experiment.refusal is None)


def plan_for_server(report: Report, answer: Answer) -> ServerPlan | None:
    """Plan of a report; None for a server that has no catalogue."""
    server = (report.facts.server or "").lower()
    if server not in SERVERS:
        return None
    entries = tuple(_for_ranks(entry, report) for entry in catalogue_of(server))
    baseline = baseline_of(report, _relative_backends(entries))
    model = _model(baseline)
    predictions = {entry.id: _predict(entry, model) for entry in entries}
    experiments = [_experiment(entry, predictions[entry.id], report, answer, model) for entry in entries]
    ranked = sorted(experiments, key=lambda entry: (entry.refusal is not None, -entry.score))
    return ServerPlan(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        server=server,
        server_version=report.facts.server_version,
        experiments=tuple(ranked),
        together=_together(ranked, {entry.id: entry for entry in entries}, model),
        estimates=baseline.estimates if baseline is not None else (),
        assumptions=_assumptions([p for p in predictions.values() if p is not None]),
    )


def _model(baseline: Baseline | None) -> CostModel | None:
    if baseline is None:
        return None
    return CostModel(baseline.measurement, baseline.table, noise=DEFAULT_NOISE, norm_us=priors.GPU_NORM_US)


def _for_ranks(entry: CatalogueEntry, report: Report) -> CatalogueEntry:
    """The entry with "{tp}" replaced by the number of ranks."""
    ranks = str(report.main_arm.facts.tp or 1)
    flags = {name: ranks if value == "{tp}" else value for name, value in entry.flags.items()}
    return entry.model_copy(update={"flags": flags})


def _relative_backends(entries: Sequence[CatalogueEntry]) -> dict[str, BackendShare]:
    return {
        entry.id: BackendShare(*entry.effect.all_reduce_share)
        for entry in entries
        if entry.effect.all_reduce_share is not None
    }


def _knobs(entry: CatalogueEntry) -> dict[str, Setting]:
    """Changes in the cost model's words; an entry with a share of the present time is its own backend."""
    knobs = dict(entry.effect.knobs)
    if entry.effect.all_reduce_share is not None:
        knobs["comm_backend"] = entry.id
    return knobs


def _predict(entry: CatalogueEntry, model: CostModel | None) -> Prediction | None:
    if model is None or entry.kind == "measurement" or not entry.effect.is_known:
        return None
    return model.predict(_knobs(entry), entry.effect.factors)


def _experiment(
    entry: CatalogueEntry,
    prediction: Prediction | None,
    report: Report,
    answer: Answer,
    model: CostModel | None,
) -> ServerExperiment:
    follows_from = tuple(dict.fromkeys(f.rule for f in answer.findings if entry.id in f.experiments))
    return ServerExperiment(
        id=entry.id,
        title=entry.title,
        why=entry.why,
        kind=entry.kind,
        flags=entry.flags,
        speculative_config=entry.speculative_config,
        env=entry.env,
        exclusive_group=entry.exclusive_group,
        conflicts=entry.conflicts,
        risk=entry.risk,
        effort_min=entry.effort_min,
        probability=entry.probability,
        predicted=PredictedEffect.of(prediction) if prediction is not None else None,
        score=_score(entry, prediction, bool(follows_from)),
        refusal=refusal_of(entry, report) or _already(entry, model),
        remarks=remarks_of(entry, report),
        follows_from=follows_from,
        engagement=entry.engagement,
        undo=entry.undo,
        source=entry.source,
    )


def _already(entry: CatalogueEntry, model: CostModel | None) -> str | None:
    """Refusal of an entry whose settings are the present ones."""
    knobs = _knobs(entry)
    if model is None or not knobs or entry.effect.phase_factors:
        return None
    is_same = Knobs.from_settings(merge_settings(model.settings, knobs)) == model.reference
    return "these are the present settings" if is_same else None


def _score(entry: CatalogueEntry, prediction: Prediction | None, is_named: bool) -> float:
    """Gain x probability / effort in minutes; without a prediction 0, or a little where a finding names it."""
    probability = min(entry.probability * (FINDING_BONUS if is_named else 1.0), 1.0)
    if prediction is None:
        return 0.001 * probability / entry.effort_min if is_named or entry.kind == "measurement" else 0.0
    return (prediction.speedup.mid - 1.0) * probability / entry.effort_min


def _together(
    ranked: Sequence[ServerExperiment], entries: Mapping[str, CatalogueEntry], model: CostModel | None
) -> Combination | None:
    """Greedy: in order of score, what still helps, fits, and keeps the drafts."""
    if model is None:
        return None
    chosen: list[CatalogueEntry] = []
    knobs: dict[str, Setting] = {}
    factors: dict[str, Interval] = {}
    best = model.predict({})
    for experiment in ranked:
        entry = entries[experiment.id]
        if experiment.refusal is not None or experiment.predicted is None or not entry.same_drafts:
            continue
        new, new_factors = _knobs(entry), entry.effect.factors
        overlaps = set(new) & set(knobs) or set(new_factors) & set(factors)
        if overlaps or any(entry.id in c.conflicts or c.id in entry.conflicts for c in chosen):
            continue
        tried = model.predict(knobs | new, factors | new_factors)
        if tried.tok_s.mid > best.tok_s.mid:
            best, knobs, factors = tried, knobs | new, factors | new_factors
            chosen.append(entry)
    return Combination(ids=tuple(c.id for c in chosen), predicted=PredictedEffect.of(best)) if chosen else None


def _assumptions(predictions: Sequence[Prediction]) -> tuple[Assumption, ...]:
    used = {prior.name: prior for prediction in predictions for prior in prediction.priors}
    return tuple(
        Assumption(name=name, text=prior.text, value=prior.value, source=prior.source, settles=prior.settles)
        for name, prior in sorted(used.items())
    )
