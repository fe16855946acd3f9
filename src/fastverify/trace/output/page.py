"""One HTML page without network or script: verdict, tables, and the kernels of one median pass on all ranks.

The pass drawn is the one of the main row whose wall span is nearest to the row's median; other ranks show the pass of
the same kind and order, on a clock aligned by the ends of collectives.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fastverify.trace.breakdown import Analysis
from fastverify.trace.output.layout import Layout, lay_out
from fastverify.trace.output.timeline_svg import COLOURS, colour_of, draw
from fastverify.trace.output.words import (
    COLLECTIVE_COLUMNS,
    LAUNCH_BOUND_NOTE,
    PASS_COLUMNS,
    RANK_COLUMNS,
    about_passes,
    collective_cells,
    first_collective_note,
    pass_cells,
    rank_cells,
    segments,
)
from fastverify.trace.passes import Pass, Passes
from fastverify.trace.profile import PassRow
from fastverify.trace.verdict import describe, format_us, main_row
from fastverify.units import NS_PER_US


def render_page(analysis: Analysis) -> str:
    """The page, in one file."""
    profile = analysis.profile
    row = main_row(profile)
    layout, ranks = _median_pass(analysis, row) if row else (None, [])
    environment = Environment(
        loader=PackageLoader("fastverify.trace.output"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("profile.html.j2").render(
        profile=profile,
        row_name=describe(row) if row else "",
        segments=[(name, us, us / row.wall_us) for name, us in segments(row) if us] if row and row.wall_us else [],
        svg=Markup(draw(layout, ranks)) if layout else "",
        num_cuts=len(layout.cuts) if layout else 0,
        classes=_classes(layout) if layout else [],
        pass_columns=PASS_COLUMNS,
        passes=[pass_cells(one) for one in profile.passes],
        collective_columns=COLLECTIVE_COLUMNS,
        collectives=[collective_cells(one) for one in row.collectives] if row else [],
        about=about_passes(profile),
        note=LAUNCH_BOUND_NOTE,
        rank_columns=RANK_COLUMNS,
        ranks=[rank_cells(one) for one in profile.ranks],
        rank_note=first_collective_note(profile),
        format_us=format_us,
    )


def _median_pass(analysis: Analysis, row: PassRow) -> tuple[Layout | None, list[int]]:
    first = _members(analysis.passes[0], row)
    walls = [_wall_ns(analysis.passes[0], one) for one in first]
    index = min(range(len(first)), key=lambda i: abs(walls[i] - row.wall_us * NS_PER_US))
    works, rows, offsets, ranks = [], [], [], []
    for rank, passes in zip(analysis.profile.ranks, analysis.passes, strict=True):
        members = _members(passes, row)
        if index < len(members):
            works.append(passes.work)
            rows.append(members[index].work)
            offsets.append(int((rank.clock_offset_us or 0.0) * NS_PER_US))
            ranks.append(rank.rank)
    if not any((work.end_ns[i] > work.start_ns[i]).any() for work, i in zip(works, rows, strict=True)):
        return None, []  # kernels without a length: a drawing has no scale
    return lay_out(works, rows, offsets), ranks


def _members(passes: Passes, row: PassRow) -> list[Pass]:
    key = (row.kind, row.phase, row.batch, row.rows)
    return [one for one in passes.passes if (one.kind, one.phase, one.batch, one.rows) == key]


def _wall_ns(passes: Passes, one: Pass) -> int:
    return int(passes.work.end_ns[one.work].max() - passes.work.start_ns[one.work].min())


def _classes(layout: Layout) -> list[str]:
    """Colours that the drawing has, for its legend."""
    found = {colour_of(box) for box in layout.boxes}
    return [colour for colour in COLOURS if colour in found]
