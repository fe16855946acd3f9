"""The kernels of one pass as inline SVG: per line one lane of compute and one of collectives for each rank.

Colours are CSS classes of the page. Collectives are numbered; every box tells its name and time on hover.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastverify.trace.kinds import KernelClass
from fastverify.trace.output.layout import Box, Layout
from fastverify.trace.verdict import format_us

WIDTH = 1180.0
LEFT = 62.0
LANE_HEIGHT = 15.0
RANK_HEIGHT = 2 * LANE_HEIGHT + 16.0
LINE_GAP = 20.0
# Three digits and a space at the page's font size; a number that would touch the one before is left out.
NUMBER_WIDTH = 15.0


# Classes with a colour of their own; the small rest shares one.
_COLOURED = {
    KernelClass.GEMM: "gemm",
    KernelClass.ATTENTION: "attention",
    KernelClass.COLLECTIVE: "collective",
    KernelClass.MOE: "moe",
    KernelClass.NORM: "norm",
    KernelClass.SAMPLING: "sampling",
    KernelClass.MEMORY: "memory",
}
COLOURS = (*_COLOURED.values(), "other")


def colour_of(box: Box) -> str:
    """The CSS class of a box, one of COLOURS."""
    return _COLOURED.get(KernelClass.MEMORY if box.is_memory else box.kind.kernel_class, "other")


def draw(layout: Layout, ranks: Sequence[int]) -> str:
    """One SVG with all lines."""
    line_height = len(ranks) * RANK_HEIGHT + LINE_GAP
    height = layout.num_lines * line_height
    parts = [f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="kernels of one pass">']
    for line in range(layout.num_lines):
        parts.append(_frame(layout, line, line * line_height, ranks))
    parts += [_cut(layout, cut.start_us, cut.end_us, cut.idle_us, line_height, len(ranks)) for cut in layout.cuts]
    parts += [_box(layout, box, line_height) for box in layout.boxes]
    parts += _numbers(layout, line_height)
    return "".join([*parts, "</svg>"])


def _scale(layout: Layout) -> float:
    return (WIDTH - LEFT - 6) / layout.line_us if layout.line_us else 0.0


def _frame(layout: Layout, line: int, top: float, ranks: Sequence[int]) -> str:
    parts = []
    for index, rank in enumerate(ranks):
        y = top + index * RANK_HEIGHT + 12
        parts.append(f'<rect class="lane" x="{LEFT}" y="{y:g}" width="{WIDTH - LEFT - 6:g}" height="{LANE_HEIGHT}"/>')
        parts.append(
            f'<rect class="lane" x="{LEFT}" y="{y + LANE_HEIGHT + 1:g}" width="{WIDTH - LEFT - 6:g}"'
            f' height="{LANE_HEIGHT}"/>'
        )
        parts.append(f'<text class="rank" x="{LEFT - 8:g}" y="{y + LANE_HEIGHT + 4:g}">rank {rank}</text>')
    parts.append(f'<text class="time" x="{LEFT:g}" y="{top + 9:g}">line {line + 1} of {layout.num_lines}</text>')
    return "".join(parts)


def _box(layout: Layout, box: Box, line_height: float) -> str:
    """One box, drawn twice where it crosses the end of a line."""
    tip = f"<title>{escape(_tip(box))}</title>"
    css = colour_of(box)
    parts = []
    for line, start_us, end_us in _pieces(layout, box.start_us, box.end_us):
        x = LEFT + start_us * _scale(layout)
        width = max((end_us - start_us) * _scale(layout), 0.4)
        y = line * line_height + box.rank_index * RANK_HEIGHT + 12
        y += LANE_HEIGHT + 1 if box.kind.is_communication else 0
        parts.append(
            f'<rect class="{css}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{LANE_HEIGHT}">{tip}</rect>'
        )
    return "".join(parts)


def _numbers(layout: Layout, line_height: float) -> list[str]:
    """The numbers of collectives, below the box where it starts."""
    parts, free_from = [], dict[tuple[int, int], float]()
    for box in layout.boxes:
        if box.number:
            line, start_us, end_us = _pieces(layout, box.start_us, box.end_us)[0]
            x = LEFT + (start_us + end_us) / 2 * _scale(layout)
            y = line * line_height + box.rank_index * RANK_HEIGHT + 12 + 2 * LANE_HEIGHT + 10
            if x >= free_from.get((line, box.rank_index), 0.0):
                parts.append(f'<text class="number" x="{x:.1f}" y="{y:g}">{box.number}</text>')
                free_from[line, box.rank_index] = x + NUMBER_WIDTH
    return parts


def _cut(layout: Layout, start_us: float, end_us: float, idle_us: float, line_height: float, num_ranks: int) -> str:
    parts = []
    for line, start, end in _pieces(layout, start_us, end_us):
        x, width = LEFT + start * _scale(layout), max((end - start) * _scale(layout), 1.0)
        y, height = line * line_height + 12, num_ranks * RANK_HEIGHT - 14
        tip = f"<title>idle for {format_us(idle_us)}, drawn shorter</title>"
        parts.append(f'<rect class="cut" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}">{tip}</rect>')
    return "".join(parts)


def _pieces(layout: Layout, start_us: float, end_us: float) -> list[tuple[int, float, float]]:
    """Line, start and end within the line, of each line that a time crosses."""
    first = min(int(start_us / layout.line_us), layout.num_lines - 1)
    last = min(int(end_us / layout.line_us), layout.num_lines - 1)
    pieces = []
    for line in range(first, last + 1):
        left = line * layout.line_us
        pieces.append((line, max(start_us - left, 0.0), min(end_us - left, layout.line_us)))
    return [piece for piece in pieces if piece[2] > piece[1] or len(pieces) == 1]


def _tip(box: Box) -> str:
    what = f"collective {box.number}: " if box.number else ""
    name = box.name if len(box.name) <= 140 else box.name[:137] + "..."
    return f"{what}{name}\n{format_us(box.duration_us)}"
