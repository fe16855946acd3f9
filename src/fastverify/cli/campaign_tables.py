"""Tables of a campaign for a terminal: its experiments with predicted against measured, and before against after."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fastverify.tuning.result import ExperimentSummary, SideNumbers, TuneResult

_ROWS = (
    ("plain decoding, tok/s", "plain_tok_s", "{:.1f}"),
    ("speculative decoding, tok/s", "speculative_tok_s", "{:.1f}"),
    ("speedup of speculation", "speedup", "{:.2f} x"),
    ("acceptance length", "accept_length", "{:.2f}"),
    ("break-even acceptance length", "break_even_accept_length", "{:.2f}"),
    ("verify pass, ms", "verify_ms", "{:.2f}"),
    ("of which all-reduce, ms", "verify_all_reduce_ms", "{:.2f}"),
    ("all-reduces per verify pass", "all_reduces_per_verify", "{:.0f}"),
)


def experiments_table(experiments: Sequence[ExperimentSummary]) -> Table:
    """One row per experiment: its state, what was predicted, what was measured, and why it ended so."""
    table = Table("experiment", "state", "predicted", "measured", "what came of it", expand=False)
    for one in experiments:
        state = f"{one.state}, kept" if one.kept else one.state
        cells = (one.id, state, _interval(one), _speedup(one.measured_speedup), one.reason or one.outcome or "")
        table.add_row(*(Text(cell) for cell in cells), style="bold" if one.kept else "")
    return table


def ends_table(result: TuneResult) -> Table:
    """Before against after, with the factor between them where it means something."""
    table = Table("", "before", "after", "factor", expand=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, name, form in _ROWS:
        before, after = _number(result.before, name), _number(result.after, name)
        factor = f"{after / before:.2f}" if before and after else ""
        table.add_row(title, _format(form, before), _format(form, after), factor)
    return table


def _number(side: SideNumbers, name: str) -> float | None:
    value: float | None = getattr(side, name)
    return value


def _format(form: str, value: float | None) -> str:
    return form.format(value) if value is not None else "-"


def _interval(one: ExperimentSummary) -> str:
    predicted = one.predicted_speedup
    return f"{predicted.mid:.2f} x ({predicted.low:.2f} to {predicted.high:.2f})" if predicted else "-"


def _speedup(value: float | None) -> str:
    return f"{value:.2f} x" if value is not None else "-"
