"""The state of a campaign as a list: what is pending, running, done, failed or skipped, predicted against measured.

Reads a ledger that a running campaign may be writing. Formats nothing.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fastverify.tuning.campaign import Campaign
from fastverify.tuning.campaign_lock import holder
from fastverify.tuning.result import ExperimentSummary, experiment_summaries, median_prediction_error
from fastverify.tuning.trial import served_tok_s


class TrialLine(BaseModel):
    """A trial that belongs to no experiment, or any trial in the order they ran."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_id: int
    at: str
    title: str
    outcome: str
    """"running" while it runs."""
    tok_s: float | None
    elapsed_s: float | None


class CampaignStatus(BaseModel):
    """What `fastverify status` shows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    process_id: int | None
    """The process that is running the campaign now."""
    planned: bool
    confirmed: bool | None
    experiments: tuple[ExperimentSummary, ...]
    trials: tuple[TrialLine, ...]
    median_prediction_error: float | None


def campaign_status(folder: Path) -> CampaignStatus:
    """Status of a campaign folder. Raises ConfigError where there is none."""
    campaign = Campaign.open(folder)
    try:
        experiments = experiment_summaries(campaign)
        confirmation = campaign.confirmation
        return CampaignStatus(
            folder=str(folder),
            process_id=holder(campaign.ledger),
            planned=campaign.plan is not None,
            confirmed=confirmation.confirmed if confirmation else None,
            experiments=experiments,
            trials=_trial_lines(campaign),
            median_prediction_error=median_prediction_error(experiments),
        )
    finally:
        campaign.close()


def _trial_lines(campaign: Campaign) -> tuple[TrialLine, ...]:
    lines = []
    for trial in campaign.trials:
        result = trial.result
        measurement = result.measurement if result else None
        lines.append(
            TrialLine(
                trial_id=trial.trial_id,
                at=trial.at,
                title=trial.start.title,
                outcome=trial.outcome or "running",
                tok_s=served_tok_s(measurement) if measurement else None,
                elapsed_s=result.elapsed_s if result else None,
            )
        )
    return tuple(lines)
