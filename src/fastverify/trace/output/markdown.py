"""A profile or a comparison as Markdown to paste into an issue: verdict, passes, collectives, ranks, health."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastverify.trace.compare import Comparison
from fastverify.trace.output.words import (
    COLLECTIVE_COLUMNS,
    COMPARISON_COLUMNS,
    LAUNCH_BOUND_NOTE,
    PASS_COLUMNS,
    RANK_COLUMNS,
    about_passes,
    collective_cells,
    comparison_cells,
    first_collective_note,
    pass_cells,
    rank_cells,
)
from fastverify.trace.profile import Profile
from fastverify.trace.verdict import describe, main_row


def render_markdown(profile: Profile) -> str:
    """The whole profile."""
    parts = [f"**{profile.verdict}**", _about(profile)]
    if profile.passes:
        parts.append(_table(PASS_COLUMNS, (pass_cells(row) for row in profile.passes)) + f"\n\n{LAUNCH_BOUND_NOTE}")
    row = main_row(profile)
    if row is not None and row.collectives:
        cells = (collective_cells(one) for one in row.collectives)
        parts.append(f"Collectives of one pass ({describe(row)}):\n\n{_table(COLLECTIVE_COLUMNS, cells)}")
    if len(profile.ranks) > 1:
        parts.append(_ranks(profile))
    parts.append(_health(profile))
    return "\n\n".join(part for part in parts if part) + "\n"


def render_comparison_markdown(comparison: Comparison) -> str:
    """One table: before, after and the ratio of each measure."""
    cells = (row for one in comparison.matched for row in comparison_cells(one))
    parts = [f"**{comparison.verdict}**", _table(COMPARISON_COLUMNS, cells)]
    for side, names in (("before", comparison.only_before), ("after", comparison.only_after)):
        if names:
            parts.append(f"Only {side}: {'; '.join(names)}.")
    return "\n\n".join(parts) + "\n"


def _about(profile: Profile) -> str:
    sources = ", ".join(f"`{source}`" for source in profile.sources)
    program = f", {profile.program}" if profile.program else ""
    device = f" on {profile.device}" if profile.device else ""
    return f"{sources}{program}{device}. {about_passes(profile)} Times are medians over the passes of a row."


def _ranks(profile: Profile) -> str:
    table = "Ranks:\n\n" + _table(RANK_COLUMNS, (rank_cells(rank) for rank in profile.ranks))
    note = first_collective_note(profile)
    return f"{table}\n\n{note}" if note else table


def _health(profile: Profile) -> str:
    if not profile.health:
        return "No fault was found in the file."
    cells = ((row.fault, str(row.count), f"`{row.example}`" if row.example else "-") for row in profile.health)
    return "Faults of the file:\n\n" + _table(("fault", "count", "example"), cells)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(columns), "|" + " --- |" * len(columns)]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
