"""A profile as rich tables and one bar for a terminal. It prints nothing: cli/profile.py does."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from fastverify.trace.compare import Comparison
from fastverify.trace.output.words import (
    COLLECTIVE_COLUMNS,
    COMPARISON_COLUMNS,
    LAUNCH_BOUND_NOTE,
    PASS_COLUMNS,
    RANK_COLUMNS,
    collective_cells,
    comparison_cells,
    first_collective_note,
    pass_cells,
    rank_cells,
    segments,
)
from fastverify.trace.profile import PassRow, Profile
from fastverify.trace.verdict import describe, format_us

_TEXT_COLUMNS = {"pass", "passes", "collective", "fault", "example", "measure"}
_BAR_WIDTH = 64
_MARKS = {
    "compute": ("█", "blue"),
    "exposed communication": ("▓", "red"),
    "copies": ("▒", "yellow"),
    "gaps in a graph": ("░", "cyan"),
    "waiting for launch": ("·", "magenta"),
    "other gaps": ("-", "default"),
}


def passes_table(profile: Profile) -> Table:
    """One row per kind, phase, batch and rows."""
    table = _table(PASS_COLUMNS)
    table.caption = LAUNCH_BOUND_NOTE
    for row in profile.passes:
        table.add_row(*pass_cells(row))
    return table


def collectives_table(row: PassRow) -> Table:
    """Collectives of one kind of pass."""
    table = _table(COLLECTIVE_COLUMNS, title=f"collectives of one pass: {describe(row)}")
    for one in row.collectives:
        table.add_row(*collective_cells(one))
    return table


def ranks_table(profile: Profile) -> Table:
    """The whole file of every rank."""
    table = _table(RANK_COLUMNS, title="whole file")
    for rank in profile.ranks:
        table.add_row(*rank_cells(rank))
    table.caption = first_collective_note(profile)
    return table


def health_table(profile: Profile) -> Table:
    """Every fault of the files."""
    table = _table(("fault", "count", "example"))
    for row in profile.health:
        table.add_row(row.fault, str(row.count), Text(row.example[:120]))
    return table


def bar(row: PassRow) -> Text:
    """The wall span of a pass as one bar and its legend; the marks differ without colour too."""
    parts = [(name, us) for name, us in segments(row) if us > 0]
    total_us = sum(us for _, us in parts) or 1.0
    text = Text(f"{describe(row)}: {format_us(row.wall_us)}\n[")
    for name, us in parts:
        mark, style = _MARKS[name]
        text.append(mark * max(round(_BAR_WIDTH * us / total_us), 1), style=style)
    text.append("]")
    for name, us in parts:
        mark, style = _MARKS[name]
        text.append(f"\n  {mark} ", style=style)
        text.append(f"{name} {format_us(us)}, {us / total_us:.0%}")
    return text


def comparison_table(comparison: Comparison) -> Table:
    """Before, after and ratio of every matched pass."""
    table = _table(COMPARISON_COLUMNS)
    for one in comparison.matched:
        for cells in comparison_cells(one):
            table.add_row(*cells)
        table.add_section()
    return table


def _table(columns: tuple[str, ...], title: str | None = None) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title_justify = table.caption_justify = "left"
    for column in columns:
        is_text = column in _TEXT_COLUMNS
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text, min_width=14 * is_text)
    return table
