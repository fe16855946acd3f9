"""What a campaign ends with: before and after, every experiment with predicted and measured speedup, and the command.

The JSON names are stable (`schema_version`). Everything is read from the ledger, so a result can be made at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.cycle_cost import cost_of_arm
from fastverify.diagnosis.diagnose import diagnose
from fastverify.diagnosis.verdict import Verdict
from fastverify.servers.builtin import as_typed
from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Server, Setting
from fastverify.tuning.campaign import Campaign, Trial
from fastverify.tuning.interval import Interval
from fastverify.tuning.ledger import State
from fastverify.tuning.outcome import MEASURED, Outcome
from fastverify.tuning.plan import PlannedExperiment
from fastverify.tuning.trial import Purpose, served_tok_s

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SideNumbers(_Record):
    """One end of the campaign. None where these settings have no speculative arm or the server did not tell."""

    accept_length: float | None
    plain_tok_s: float
    speculative_tok_s: float | None
    speedup: float | None
    break_even_accept_length: float | None
    verify_ms: float | None
    verify_all_reduce_ms: float | None
    all_reduces_per_verify: float | None


class ExperimentSummary(_Record):
    """One experiment of the plan and what became of it."""

    id: str
    title: str
    state: State
    changes: dict[str, Setting]
    predicted_speedup: Interval | None
    """On top of the settings it was tried on; from the baseline where it was not tried."""
    measured_speedup: float | None
    """None also where a gate was not passed: a wrong output has no speed."""
    outcome: Outcome | None
    kept: bool
    reason: str


class WinnerSummary(_Record):
    """The settings to use, as asked for, and the command that launches them."""

    settings: dict[str, Setting]
    launch_command: str
    confirmed: bool | None
    """None where the baseline won, or where no confirmation was asked for."""
    detail: str


class TuneResult(_Record):
    """The final object of `fastverify tune --json` and `fastverify demo --json`."""

    schema_version: int = SCHEMA_VERSION
    before: SideNumbers
    after: SideNumbers
    headline_before: str
    headline_after: str
    experiments: tuple[ExperimentSummary, ...]
    winner: WinnerSummary
    median_prediction_error: float | None
    """Median of |predicted / measured - 1| over the speedups that have both."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self.model_dump(mode="json")


def result_of(campaign: Campaign, server: Server) -> TuneResult:
    """Result of a campaign whose baseline was measured."""
    baseline, best = campaign.baseline, campaign.best
    assert baseline is not None, "a result needs a baseline"
    assert best is not None, "the best settings are the baseline's at least"
    confirmation = campaign.confirmation
    is_refuted = confirmation is not None and not confirmation.confirmed
    winner = baseline if is_refuted else best
    before = typical_measurement(campaign, ("baseline", "baseline_repeat", "confirm_baseline"), baseline)
    is_baseline = winner.trial_id == baseline.trial_id
    after = before if is_baseline else typical_measurement(campaign, ("confirm_winner",), winner)
    experiments = experiment_summaries(campaign)
    return TuneResult(
        before=side_numbers(before),
        after=side_numbers(after),
        headline_before=headline(before),
        headline_after=headline(after),
        experiments=experiments,
        winner=WinnerSummary(
            settings=winner.start.settings,
            launch_command=launch_command(server, winner.start.settings),
            confirmed=confirmation.confirmed if confirmation else None,
            detail=confirmation.detail if confirmation else _unconfirmed(is_baseline),
        ),
        median_prediction_error=median_prediction_error(experiments),
    )


def typical_measurement(campaign: Campaign, purposes: Sequence[Purpose], trial: Trial) -> ServerMeasurement:
    """Of all launches with the same settings and arms, the one whose rate is the (low) median.

    Numbers of one launch belong together, so nothing is averaged over launches.
    """
    assert trial.measurement is not None, "only called for a trial that was measured"
    launches = {one.trial_id: one.measurement for purpose in purposes for one in campaign.of_purpose(purpose)}
    launches[trial.trial_id] = trial.measurement
    alike = [one for one in launches.values() if one is not None and one.arms.keys() == trial.measurement.arms.keys()]
    alike.sort(key=served_tok_s)
    return alike[(len(alike) - 1) // 2]


def side_numbers(measurement: ServerMeasurement) -> SideNumbers:
    """The stable numbers of one measurement."""
    verdict = verdict_of(measurement)
    if verdict is None:
        plain = cost_of_arm(measurement.arms["plain"])
        missing = dict.fromkeys(name for name in SideNumbers.model_fields if name != "plain_tok_s")
        return SideNumbers(plain_tok_s=plain.tok_s, **missing)
    return SideNumbers(**verdict.model_dump(include=set(SideNumbers.model_fields)))


def headline(measurement: ServerMeasurement) -> str:
    """The verdict in one line."""
    verdict = verdict_of(measurement)
    if verdict is not None:
        return verdict.headline
    return f"Speculation is off: plain decoding at {measurement.arms['plain'].tok_s:.1f} tok/s."


def verdict_of(measurement: ServerMeasurement) -> Verdict | None:
    """None where only plain decoding was served."""
    return diagnose(measurement).verdict if "speculative" in measurement.arms else None


def experiment_summaries(campaign: Campaign) -> tuple[ExperimentSummary, ...]:
    """Every experiment in the order of the plan."""
    tried = {trial.experiment_id: trial for trial in campaign.trials if trial.outcome != "interrupted"}
    return tuple(
        _summary(PlannedExperiment.model_validate_json(entry.document), entry.state, entry.reason, tried)
        for entry in campaign.experiments
    )


def median_prediction_error(experiments: Sequence[ExperimentSummary]) -> float | None:
    """None where nothing was measured."""
    errors = [
        abs(one.predicted_speedup.mid / one.measured_speedup - 1.0)
        for one in experiments
        if one.predicted_speedup is not None and one.measured_speedup
    ]
    return median(errors) if errors else None


def launch_command(server: Server, settings: Mapping[str, Setting]) -> str:
    """The command that a user types to serve with these settings."""
    return as_typed(server.launch_spec(settings).argv)


def _summary(
    planned: PlannedExperiment, state: State, reason: str, tried: Mapping[str | None, Trial]
) -> ExperimentSummary:
    trial = tried.get(planned.id)
    result = trial.result if trial else None
    counts = trial is not None and trial.outcome in MEASURED
    predicted = trial.start.predicted if trial and trial.start.predicted else planned.predicted
    return ExperimentSummary(
        id=planned.id,
        title=planned.title,
        state=state,
        changes=planned.changes,
        predicted_speedup=predicted.speedup,
        measured_speedup=result.measured.speedup if counts and result and result.measured else None,
        outcome=trial.outcome if trial else None,
        kept=result.kept if result else False,
        reason=reason,
    )


def _unconfirmed(is_baseline: bool) -> str:
    return "Nothing beat the baseline beyond its noise." if is_baseline else "No confirmation was asked for."
