"""The figure of where a cycle's time goes: one stacked bar per arm and end of the campaign, on one scale.

Every phase keeps its colour on the whole page; what is communication has one hue. Labels stand in the bars where they
fit; the table beside the figure has every number.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastverify.diagnosis.cycle_cost import PHASE_TITLES
from fastverify.tuning.report_svg import Scale, Svg, round_ticks, text_width, x_axis
from fastverify.tuning.report_types import Bar
from fastverify.units import MS_PER_S

WIDTH = 960.0
LEFT = 118.0
RIGHT = 196.0
ROW = 30.0
BAR = 22.0
GROUP_GAP = 12.0
LABEL_SIZE = 12.0
PHASE_ORDER = (
    "draft",
    "plain_compute",
    "verify_compute",
    "plain_all_reduce",
    "verify_all_reduce",
    "plain_gather",
    "verify_gather",
    "extend",
    "accept",
    "host",
    "outside_verify",
    "gap",
)
# One row of the table and one colour for what both arms do under different names.
PHASE_ROWS = {
    "draft": ("draft",),
    "compute of the pass": ("plain_compute", "verify_compute"),
    "all-reduce of the pass": ("plain_all_reduce", "verify_all_reduce"),
    "gather of the pass": ("plain_gather", "verify_gather"),
    "extend": ("extend",),
    "accept and sample": ("accept",),
    "host": ("host",),
    "outside the verify pass": ("outside_verify",),
    "not accounted for": ("gap",),
}
_ROW_COLOURS = ("draft", "compute", "communication", "gather", "extend", "accept", "host", "host", "gap")
_COLOUR_OF = {
    phase: colour for phases, colour in zip(PHASE_ROWS.values(), _ROW_COLOURS, strict=True) for phase in phases
}
# Arbitrary: below this share of the longest bar, the bars after tuning are drawn a second time on a scale of their own.
ENLARGE_BELOW = 0.45


def colour(phase: str) -> str:
    """CSS class of a phase; an unknown phase of a newer server is drawn as host time."""
    return f"phase-{_COLOUR_OF.get(phase, 'host')}"


def ordered(phases_ms: dict[str, float]) -> list[tuple[str, float]]:
    """Phases with time in them, in the order of a cycle; phases unknown here come last."""
    known = [phase for phase in PHASE_ORDER if phase in phases_ms]
    return [(phase, phases_ms[phase]) for phase in [*known, *sorted(set(phases_ms) - set(known))] if phases_ms[phase]]


def anatomy_figure(bars: Sequence[Bar], *, per_token: bool = False, label: str) -> str:
    """Stacked bars of a cycle, or of one output token when `per_token`."""
    divisor = {id(bar): bar.accept_length if per_token else 1.0 for bar in bars}
    longest_ms = max(bar.cycle_ms / divisor[id(bar)] for bar in bars)
    scale = Scale(0.0, longest_ms, LEFT, WIDTH - RIGHT)
    ends = [end for end in ("before", "after") if any(bar.end == end for bar in bars)]
    bottom = len(bars) * ROW + (len(ends) - 1) * GROUP_GAP + 4
    svg = Svg(WIDTH, bottom + 36, label)
    x_axis(svg, scale, round_ticks(0.0, longest_ms), 0.0, bottom, lambda ms: f"{ms:g}")
    svg.text(WIDTH - RIGHT + 12, bottom + 16, "ms per token" if per_token else "ms per cycle", "tick")
    y = 4.0
    for end in ends:
        for bar in (bar for bar in bars if bar.end == end):
            _draw_bar(svg, scale, bar, divisor[id(bar)], y, per_token)
            y += ROW
        y += GROUP_GAP
    return svg.render()


def enlarged_bars(bars: Sequence[Bar]) -> tuple[list[Bar], float]:
    """Bars after tuning and how many times they are enlarged; none when they are long enough to read."""
    after = [bar for bar in bars if bar.end == "after"]
    before = [bar for bar in bars if bar.end == "before"]
    if not after or not before:
        return [], 1.0
    ratio = max(bar.cycle_ms for bar in after) / max(bar.cycle_ms for bar in bars)
    return (after, 1 / ratio) if ratio < ENLARGE_BELOW else ([], 1.0)


def phase_table(bars: Sequence[Bar]) -> list[tuple[str, str, list[float | None]]]:
    """Rows of (title, CSS class, ms per bar), None where an arm has no such phase."""
    rows = []
    for (title, phases), name in zip(PHASE_ROWS.items(), _ROW_COLOURS, strict=True):
        cells = [_sum_of(bar, phases) for bar in bars]
        if any(cells):
            rows.append((title, f"phase-{name}", cells))
    return rows


def _sum_of(bar: Bar, phases: tuple[str, ...]) -> float | None:
    known = [bar.phases_ms[phase] for phase in phases if phase in bar.phases_ms]
    return sum(known) if known else None


def _draw_bar(svg: Svg, scale: Scale, bar: Bar, divisor: float, y: float, per_token: bool) -> None:
    svg.text(LEFT - 10, y + 15, f"{bar.end}, {'plain' if bar.arm == 'plain' else 'spec.'}", "row", "end")
    start_ms = 0.0
    for phase, ms in ordered(bar.phases_ms):
        ms /= divisor
        _draw_segment(svg, scale, phase, start_ms, ms, y)
        start_ms += ms
    svg.text(scale(bar.cycle_ms / divisor) + 8, y + 15, _end_label(bar, divisor, per_token), "label")


def _draw_segment(svg: Svg, scale: Scale, phase: str, start_ms: float, ms: float, y: float) -> None:
    left, right = scale(start_ms), scale(start_ms + ms)
    title = PHASE_TITLES.get(phase, phase)
    svg.rect(left, y, right - left, BAR, colour(phase), f"{title}: {ms:.2f} ms")
    short = title.removeprefix("verify ").removeprefix("plain ")
    for text in (f"{short} {ms:.1f}", f"{ms:.1f}"):
        if text_width(text, LABEL_SIZE) + 6 <= right - left:
            svg.text((left + right) / 2, y + 15, text, f"in-bar on-{colour(phase)}", "middle")
            return


def _end_label(bar: Bar, divisor: float, per_token: bool) -> str:
    if per_token:
        return f"{bar.cycle_ms / divisor:.2f} ms = {MS_PER_S * divisor / bar.cycle_ms:.0f} tok/s"
    tokens = "1 token" if bar.arm == "plain" else f"{bar.accept_length:.2f} tokens"
    return f"{bar.cycle_ms:.1f} ms for {tokens}"
