"""The report's sentences, shared by the page and the Markdown.

Above all the one that gives credit: a faster all-reduce speeds up plain decoding as well, so its gain is never counted
as speculation's.
"""

from __future__ import annotations

from fastverify.tuning.report_types import Decomposition, Report
from fastverify.tuning.result import ExperimentSummary, SideNumbers

# Arbitrary: factors this near to 1 are told as "no change", even where launches differ by less.
SAME = 0.02
# Arbitrary: a quiet machine repeats itself within 1.5 to 4 % (field reports); above twice that the reader is warned.
LOUD = 0.08
HEADLINE_NUMBERS = (
    ("plain decoding", "plain_tok_s", "tok/s", 1),
    ("speculative decoding", "speculative_tok_s", "tok/s", 1),
    ("speedup of speculation", "speedup", "x", 2),
    ("verify pass", "verify_ms", "ms", 1),
)


def factor(value: float) -> str:
    """`5.02x`, `12.4x`."""
    return f"{value:.1f}x" if value >= 9.95 else f"{value:.2f}x"


def no_change_sentence(report: Report) -> str:
    """What a campaign says whose winner is the baseline."""
    was_run = any(row.state in ("done", "failed") for row in report.experiments)
    return "Nothing tried was better." if was_run else "No experiment was run."


def noise_sentence(report: Report) -> str:
    """A warning where the machine was too restless for small differences; empty otherwise."""
    if report.noise is None or report.noise < LOUD:
        return ""
    return (
        f"This machine was restless: two launches of the same settings differed by {100 * report.noise:.0f} %. "
        "Read smaller differences as none."
    )


def credit_sentences(report: Report) -> list[str]:
    """How much of the gain was given to both arms, and how much is speculation's own; empty where nothing changed."""
    parts, before, after = report.decomposition, report.before, report.after
    if parts is None or before is None or after is None:
        return []
    same = max(SAME, report.noise or 0.0)
    whole = f"Speculative decoding now runs {factor(parts.total)} as fast as before."
    product = f"{factor(parts.shared)} for both arms times {factor(parts.speculation)} makes {factor(parts.total)}."
    return [whole, _shared_part(parts, same), _own_part(parts, before, after, same), product]


def _shared_part(parts: Decomposition, same: float) -> str:
    if abs(parts.shared - 1) <= same:
        return f"Plain decoding did not change beyond the noise ({factor(parts.shared)}, noise {100 * same:.0f} %)."
    if parts.shared < 1:
        return f"The same changes slow plain decoding down to {factor(parts.shared)} of its rate."
    return (
        f"Plain decoding runs {factor(parts.shared)} as fast with the same changes"
        f"{_saved(parts)}, so that much is no merit of speculation."
    )


def _saved(parts: Decomposition) -> str:
    if parts.plain_saved_all_reduce_ms is None or parts.plain_saved_ms <= 0:
        return ""
    all_reduce, saved = parts.plain_saved_all_reduce_ms, parts.plain_saved_ms
    return f" ({all_reduce:.1f} of the {saved:.1f} ms that its step saves are all-reduce)"


def _own_part(parts: Decomposition, before: SideNumbers, after: SideNumbers, same: float) -> str:
    change = (
        f"its advantage over plain decoding went from {factor(before.speedup or 0)} to {factor(after.speedup or 0)}"
    )
    if abs(parts.speculation - 1) <= same:
        return f"Speculation itself gained nothing beyond the noise: {change}."
    if parts.speculation < 1:
        return f"Speculation gained less than plain decoding: {change}, a factor of {factor(parts.speculation)}."
    return f"Speculation's own part is {factor(parts.speculation)}: {change}."


def headline_numbers(report: Report) -> list[tuple[str, str, str, str]]:
    """(name, before, after with unit, change) of the four numbers at the top; an empty text for what is not known."""
    rows = []
    after = report.after if report.after != report.before else None
    for name, key, unit, digits in HEADLINE_NUMBERS:
        old, new = (getattr(side, key) if side else None for side in (report.before, after))
        texts = ["" if value is None else f"{value:.{digits}f}" for value in (old, new)]
        unit_text = unit if unit == "x" else f" {unit}"
        shown = texts[1] or texts[0]
        rows.append((name, texts[0] if texts[1] else "", shown + unit_text if shown else "", _change(key, old, new)))
    return rows


def _change(key: str, old: float | None, new: float | None) -> str:
    if not old or not new or key == "speedup":
        return "over plain decoding" if key == "speedup" else ""
    ratio = old / new if key.endswith("_ms") else new / old
    return f"{factor(ratio)} as fast"


def outcome_text(row: ExperimentSummary) -> str:
    """`kept`, `not kept`, or the failure in words; empty for an experiment that was not tried."""
    if row.outcome is None:
        return ""
    if row.outcome == "ok":
        return "kept" if row.kept else "not kept"
    return row.outcome.replace("_", " ")


def reason_text(row: ExperimentSummary) -> str:
    """Why it ended so; a pending experiment has no reason yet."""
    return "" if row.state == "pending" else row.reason


def predicted_text(row: ExperimentSummary) -> str:
    """`1.10 to 1.42x`, or a dash where there is no prediction."""
    if row.predicted_speedup is None:
        return "-"
    return f"{row.predicted_speedup.low:.2f} to {row.predicted_speedup.high:.2f}x"


def measured_text(row: ExperimentSummary) -> str:
    """`1.31x`, or a dash."""
    return "-" if row.measured_speedup is None else f"{row.measured_speedup:.2f}x"


def error_sentence(report: Report) -> str:
    """How good the predictions were: the median, and the worst by name."""
    errors = {
        row.id: abs(row.predicted_speedup.mid / row.measured_speedup - 1.0)
        for row in report.experiments
        if row.predicted_speedup is not None and row.measured_speedup
    }
    if report.median_prediction_error is None or not errors:
        return "No experiment has both a prediction and a measurement yet."
    worst = max(errors, key=lambda name: errors[name])
    inside = sum(
        row.predicted_speedup.contains(row.measured_speedup)
        for row in report.experiments
        if row.predicted_speedup is not None and row.measured_speedup
    )
    return (
        f"Median error {100 * report.median_prediction_error:.0f} %, largest {100 * errors[worst]:.0f} % ({worst}); "
        f"{inside} of {len(errors)} measurements lie inside the predicted interval."
    )
