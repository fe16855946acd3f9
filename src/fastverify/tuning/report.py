"""The report of a campaign folder: `build_report` reads it, `write_report` writes report.html, report.md, report.json.

Works at any time: on a folder with a plan only, in the middle of a campaign that another process runs, and at its end.
Numbers come from result.py and report_measured.py, words and layout from report_render.py.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fastverify.errors import ConfigError
from fastverify.servers.builtin import BuiltinServer
from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Server
from fastverify.tuning import report_checks, report_measured
from fastverify.tuning.campaign import Campaign, Trial, write_file
from fastverify.tuning.report_render import render_html, render_markdown
from fastverify.tuning.report_types import Report
from fastverify.tuning.result import (
    ExperimentSummary,
    TuneResult,
    WinnerSummary,
    experiment_summaries,
    median_prediction_error,
    result_of,
    typical_measurement,
)

HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"
JSON_FILE = "report.json"


class _Ends(NamedTuple):
    """Both ends of a campaign; `after` is None while nothing but the baseline is known."""

    winner: Trial
    before: ServerMeasurement
    after: ServerMeasurement | None


def build_report(campaign_dir: Path, server: Server | None = None) -> Report:
    """Report of a campaign folder; `server` spells the launch command where it is not the built-in one.

    Raises: ConfigError for a folder without a campaign, LedgerError for a damaged one.
    """
    with closing(Campaign.open(campaign_dir)) as campaign:
        ends = _ends(campaign)
        if ends is None:
            return _without_baseline(campaign)
        return _report(campaign, ends, result_of(campaign, server or _server_named(campaign.document.server)))


def write_report(report: Report, out_dir: Path) -> tuple[Path, Path, Path]:
    """Write the three files, each at once, and return their paths."""
    paths = (out_dir / HTML_FILE, out_dir / MARKDOWN_FILE, out_dir / JSON_FILE)
    texts = (render_html(report), render_markdown(report), report.model_dump_json(indent=2) + "\n")
    for path, text in zip(paths, texts, strict=True):
        write_file(path, text)
    return paths


def _server_named(name: str) -> Server:
    if name == BuiltinServer.name:
        return BuiltinServer()
    raise ConfigError(
        f"the launch command of a {name!r} server needs that server, and only {BuiltinServer.name!r} is known here. "
        "Pass it as build_report(folder, server)."
    )


def _ends(campaign: Campaign) -> _Ends | None:
    """The measurements that result.py's numbers come from; None before the baseline is measured."""
    baseline, best, confirmation = campaign.baseline, campaign.best, campaign.confirmation
    if baseline is None or best is None:
        return None
    winner = baseline if confirmation is not None and not confirmation.confirmed else best
    before = typical_measurement(campaign, ("baseline", "baseline_repeat", "confirm_baseline"), baseline)
    if winner.trial_id != baseline.trial_id:
        return _Ends(winner, before, typical_measurement(campaign, ("confirm_winner",), winner))
    return _Ends(winner, before, before if _is_finished(campaign) else None)


def _is_finished(campaign: Campaign) -> bool:
    """Nothing is pending or running, and a winner that was to be confirmed has its answer."""
    if campaign.plan is None or any(entry.state in ("pending", "running") for entry in campaign.experiments):
        return False
    wants_confirmation = campaign.document.options.confirm_pairs > 0 and bool(report_checks.kept_trials(campaign))
    return campaign.confirmation is not None or not wants_confirmation


def _without_baseline(campaign: Campaign) -> Report:
    return Report(
        title=_title(campaign),
        generated_at=_now(),
        finished=False,
        headline_before="",
        headline_after="",
        before=None,
        after=None,
        experiments=(),
        winner=None,
        median_prediction_error=None,
        noise=None,
        decomposition=None,
        bars=(),
        all_reduce=campaign.document.all_reduce,
        marks=(),
        acceptance=None,
        changed_settings={},
        checks=(),
        method=tuple(report_checks.method(campaign)),
        assumptions=(),
        limits=("The baseline is not measured yet.",),
    )


def _report(campaign: Campaign, ends: _Ends, result: TuneResult) -> Report:
    before, after = ends.before, ends.after
    newest = after or before
    experiments = _tried_first(campaign, experiment_summaries(campaign))
    bars = report_measured.bars_of(before, "before")
    has_change = after is not None and after is not before
    return Report(
        title=_title(campaign),
        generated_at=_now(),
        finished=_is_finished(campaign),
        headline_before=result.headline_before,
        headline_after=result.headline_after if after else "",
        before=result.before,
        after=result.after if after else None,
        experiments=experiments,
        winner=_winner(campaign, result) if after else None,
        median_prediction_error=median_prediction_error(experiments),
        noise=campaign.noise.tok_s if campaign.noise else None,
        decomposition=report_measured.decompose(before, newest) if has_change else None,
        bars=tuple([*bars, *report_measured.bars_of(newest, "after")] if has_change else bars),
        all_reduce=campaign.document.all_reduce,
        marks=tuple(report_measured.message_marks(newest)),
        acceptance=report_measured.acceptance_curve(newest, campaign.table, "after" if after else "before"),
        changed_settings=report_measured.changed_settings(before, newest),
        checks=tuple(report_checks.checks(campaign, ends.winner, newest)),
        method=tuple(report_checks.method(campaign)),
        assumptions=campaign.plan.assumptions if campaign.plan else (),
        limits=tuple(report_checks.limits(campaign)),
    )


def _winner(campaign: Campaign, result: TuneResult) -> WinnerSummary:
    """The winner so far; while the campaign runs, its confirmation is still to come."""
    if campaign.confirmation is not None or _is_finished(campaign):
        return result.winner
    return result.winner.model_copy(update={"detail": "The campaign is not finished: this is the best so far."})


def _tried_first(campaign: Campaign, experiments: tuple[ExperimentSummary, ...]) -> tuple[ExperimentSummary, ...]:
    """In the order of their first trial, since each was tried on top of those kept before; then by the plan's rank."""
    order: dict[str | None, int] = {}
    for trial in campaign.trials:
        order.setdefault(trial.experiment_id, trial.trial_id)
    last = len(campaign.trials) + 1
    return tuple(sorted(experiments, key=lambda one: order.get(one.id, last)))


def _title(campaign: Campaign) -> str:
    return f"fastverify campaign {campaign.folder.resolve().name}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
