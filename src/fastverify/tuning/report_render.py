"""A report as one HTML page without network or script, and as Markdown for an issue.

Layout is in templates/; figures come from report_anatomy.py and report_figures.py as inline SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fastverify.servers.server import Setting
from fastverify.tuning import report_anatomy, report_figures, report_words
from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.outcome import MEANINGS
from fastverify.tuning.report_types import MessageMark, Report
from fastverify.tuning.result import ExperimentSummary

# Arbitrary: above this many curves, sums and fused norms get a figure each.
MAX_CURVES = 6


def render_html(report: Report) -> str:
    """The page, in one file."""
    environment = _environment(autoescape=True)
    enlarged, enlarged_by = report_anatomy.enlarged_bars(report.bars)
    rows = report.experiments
    return environment.get_template("report.html.j2").render(
        **_common(report),
        figures=_figures(report),
        enlarged_by=enlarged_by if enlarged else 1.0,
        axis=Markup(report_figures.interval_axis(rows)),
        rows=[_row(row, Markup(report_figures.interval_cell(row, rows))) for row in rows],
    )


def render_markdown(report: Report) -> str:
    """The same content without figures."""
    environment = _environment(autoescape=False)
    rows = [_row(row, Markup("")) for row in report.experiments]
    return environment.get_template("report.md.j2").render(**_common(report), rows=rows)


def render_all_reduce_html(rows: Sequence[AllReduceRow], title: str, marks: Mapping[str, float] | None = None) -> str:
    """A page with the curves of one all-reduce benchmark; at least one row was measured. `marks`: label -> bytes."""
    missing = {row.backend: row.reason for row in rows if row.reason and row.median_us is None}
    for row in rows:
        if row.median_us is not None:
            missing.pop(row.backend, None)
    curves = {(row.backend, row.fused) for row in rows if row.median_us}
    parts = [[row for row in rows if row.fused is fused] for fused in (False, True)]
    if len(curves) <= MAX_CURVES:
        parts = [list(rows)]
    sizes = [MessageMark(label=label, num_bytes=num_bytes) for label, num_bytes in (marks or {}).items()]
    figures = [report_figures.all_reduce_figure(part, sizes) for part in parts if any(row.median_us for row in part)]
    return (
        _environment(autoescape=True)
        .get_template("all_reduce.html.j2")
        .render(
            title=title,
            figure=Markup("".join(figures)),
            reasons=[f"{backend} did not run: {reason}" for backend, reason in missing.items()],
        )
    )


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("fastverify.tuning"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _table_cell
    environment.filters["setting"] = _setting
    return environment


def _table_cell(value: object) -> str:
    """Text that cannot end a Markdown table cell."""
    return " ".join(str(value).replace("|", "\\|").split())


def _setting(value: Setting | None) -> str:
    """A setting as JSON and command lines spell it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


def _common(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "is_changed": report.after is not None and report.after != report.before,
        "numbers": report_words.headline_numbers(report),
        "noise": report_words.noise_sentence(report),
        "no_change": report_words.no_change_sentence(report),
        "credit": report_words.credit_sentences(report),
        "phases": report_anatomy.phase_table(report.bars),
        "error": report_words.error_sentence(report),
        "refused": {row.backend: row.reason for row in report.all_reduce if row.median_us is None and row.reason},
    }


def _row(row: ExperimentSummary, plot: Markup) -> dict[str, Any]:
    css = "kept" if row.kept else "lost" if row.state == "failed" else "idle"
    predicted, measured = report_words.predicted_text(row), report_words.measured_text(row)
    outcome = report_words.outcome_text(row)
    return {
        "data": row,
        "css": css,
        "plot": plot,
        "predicted": predicted,
        "measured": measured,
        "outcome": outcome,
        "reason": report_words.reason_text(row),
        "tip": MEANINGS[row.outcome] if row.outcome else "",
    }


def _figures(report: Report) -> dict[str, Markup]:
    """Every figure by name; an empty text where the campaign has no data for it yet."""
    drawn = {"cycle": "", "token": "", "enlarged": "", "scatter": "", "all_reduce": "", "acceptance": ""}
    drawn["draft_length"] = ""
    if report.bars:
        drawn["cycle"] = report_anatomy.anatomy_figure(report.bars, label="anatomy of a cycle, both arms")
        drawn["token"] = report_anatomy.anatomy_figure(report.bars, per_token=True, label="time per output token")
        enlarged, _ = report_anatomy.enlarged_bars(report.bars)
        drawn["enlarged"] = report_anatomy.anatomy_figure(enlarged, label="after, enlarged") if enlarged else ""
    if report.median_prediction_error is not None:
        drawn["scatter"] = report_figures.scatter_figure(report.experiments)
    if any(row.median_us for row in report.all_reduce):
        drawn["all_reduce"] = report_figures.all_reduce_figure(report.all_reduce, report.marks)
    if report.acceptance and report.acceptance.correct_drafts_per_position:
        drawn["acceptance"] = report_figures.acceptance_figure(report.acceptance.correct_drafts_per_position)
    if report.acceptance and len(report.acceptance.points) > 1:
        drawn["draft_length"] = report_figures.draft_length_figure(report.acceptance)
    return {name: Markup(svg) for name, svg in drawn.items()}
