"""The last word: baseline and winner launched in turn (A B A B), so that a drift of the machine hits both alike.

Confirmed when every launch of the winner was faster than every launch of the baseline. A campaign whose winner is the
baseline has nothing to confirm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from fastverify.servers.server import Setting
from fastverify.tuning import budget
from fastverify.tuning.campaign import Campaign, Confirmation, Trial
from fastverify.tuning.progress import Progress
from fastverify.tuning.trial import Purpose, TuneOptions, served_tok_s

Launch = Callable[[Purpose, str, Mapping[str, Setting], int], Trial]
Side = Literal["confirm_baseline", "confirm_winner"]
_TITLES: dict[Side, str] = {"confirm_baseline": "baseline, confirmation", "confirm_winner": "winner, confirmation"}
# One more try for a launch that failed; a second failure is an answer.
MAX_FAILURES = 2


def confirm(campaign: Campaign, options: TuneOptions, launch: Launch, progress: Progress) -> None:
    """Run what is missing of the A B A B and store the answer. Does nothing when it is stored already."""
    baseline, best = campaign.baseline, campaign.best
    if campaign.confirmation is not None or baseline is None or best is None:
        return
    if best.trial_id == baseline.trial_id or options.confirm_pairs == 0:
        return
    settings: dict[Side, Mapping[str, Setting]] = {
        "confirm_baseline": baseline.start.settings,
        "confirm_winner": best.start.settings,
    }
    for pair in range(1, options.confirm_pairs + 1):
        if pair > 1 and _no_time(campaign, options):
            break
        for side, sides_settings in settings.items():
            while len(campaign.of_purpose(side)) < pair and _failures(campaign, side) < MAX_FAILURES:
                launch(side, f"{_TITLES[side]} {pair}", sides_settings, options.confirm_repeats)
    answer = judge_confirmation(campaign)
    campaign.put_once("confirmation", answer)
    progress.note(answer.detail)


def _no_time(campaign: Campaign, options: TuneOptions) -> bool:
    """Whether a further pair, as long as the newest one, would exceed the budget."""
    newest = [campaign.of_purpose(side)[-1:] for side in _TITLES]
    next_s = sum(trial.result.elapsed_s for trials in newest for trial in trials if trial.result)
    return budget.shortage(options, campaign.spent_s, next_s, reserved_s=0.0) is not None


def judge_confirmation(campaign: Campaign) -> Confirmation:
    """Compare every launch of one side with every launch of the other."""
    baseline, winner = _rates(campaign, "confirm_baseline"), _rates(campaign, "confirm_winner")
    if not baseline or not winner:
        confirmed, detail = False, "The winner could not be confirmed: a side did not run again."
    else:
        confirmed = min(winner) > max(baseline)
        verb = "is confirmed" if confirmed else "is not confirmed"
        detail = (
            f"The winner {verb}: {min(winner):.1f} to {max(winner):.1f} tok/s against "
            f"{min(baseline):.1f} to {max(baseline):.1f} of the baseline, launched in turn {len(winner)} times."
        )
    return Confirmation(confirmed=confirmed, baseline_tok_s=baseline, winner_tok_s=winner, detail=detail)


def _rates(campaign: Campaign, side: Side) -> tuple[float, ...]:
    return tuple(served_tok_s(trial.measurement) for trial in campaign.of_purpose(side) if trial.measurement)


def _failures(campaign: Campaign, side: Side) -> int:
    """Launches that were run and failed; an interrupted one is no failure."""
    failed = [trial for trial in campaign.trials if trial.start.purpose == side and trial.measurement is None]
    return sum(trial.outcome not in (None, "interrupted") for trial in failed)
