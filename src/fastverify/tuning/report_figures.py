"""The report's other figures: predicted interval with measured dot, all-reduce curves, scatter, draft length.

Each function takes the report's own records and returns one inline SVG. Speedups are on a logarithmic axis, where a
gain and a loss of the same factor are equally far from 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.report_svg import Scale, Svg, log_ticks, round_ticks, spread, text_width, x_axis, y_axis
from fastverify.tuning.report_types import AcceptanceCurve, MessageMark
from fastverify.tuning.result import ExperimentSummary
from fastverify.units import US_PER_MS, format_bytes, format_ms

WIDTH = 960.0
HALF = 460.0
CELL_WIDTH = 264.0
CELL_HEIGHT = 24.0
MIN_SPEEDUP = 0.1
# Source: the project's target, predictions within 20 %.
BAND = 1.2
# Further backends share the last style; their labels tell them apart.
MAX_STYLE = 3


def speedup_scale(rows: Sequence[ExperimentSummary], start: float, end: float) -> Scale:
    """One logarithmic axis that holds every predicted and measured speedup, and 1."""
    values = [1.0]
    for row in rows:
        if row.predicted_speedup is not None:
            values += [row.predicted_speedup.low, row.predicted_speedup.high]
        if row.measured_speedup is not None:
            values.append(row.measured_speedup)
    # An interval may reach down to zero; the axis ends at a tenth, where its bar is cut.
    shown = [max(value, MIN_SPEEDUP) for value in values]
    return Scale(min(shown) / 1.1, max(shown) * 1.1, start, end, log=True)


def speedup_ticks(scale: Scale, most: int = 5) -> list[float]:
    """Round speedups within the scale, always with 1."""
    for base, multiples in ((2, (1.0, 1.5)), (2, (1.0,)), (4, (1.0,)), (10, (1.0,))):
        ticks = log_ticks(scale.low, scale.high, base, multiples)
        if len(ticks) <= most:
            break
    return ticks


def interval_axis(rows: Sequence[ExperimentSummary]) -> str:
    """The axis above the interval column of the experiments table."""
    svg = Svg(CELL_WIDTH, 16, "axis of speedups")
    scale = speedup_scale(rows, 8, CELL_WIDTH - 8)
    for tick in speedup_ticks(scale):
        svg.text(scale(tick), 12, f"{tick:g}x", "tick", "middle")
    return svg.render()


def interval_cell(row: ExperimentSummary, rows: Sequence[ExperimentSummary]) -> str:
    """Predicted interval as a bar, measured speedup as a dot, on the axis shared by all rows."""
    scale = speedup_scale(rows, 8, CELL_WIDTH - 8)
    svg = Svg(CELL_WIDTH, CELL_HEIGHT, f"{row.id}: {_interval_words(row)}")
    for tick in speedup_ticks(scale):
        svg.line(scale(tick), 0, scale(tick), CELL_HEIGHT, "one" if tick == 1 else "grid")
    if row.predicted_speedup is not None:
        predicted = row.predicted_speedup
        low, mid, high = scale(predicted.low), scale(predicted.mid), scale(predicted.high)
        svg.rect(low, CELL_HEIGHT / 2 - 4, max(high - low, 2), 8, "predicted", _interval_words(row))
        svg.line(mid, CELL_HEIGHT / 2 - 4, mid, CELL_HEIGHT / 2 + 4, "predicted-mid")
    if row.measured_speedup is not None:
        svg.dot(scale(row.measured_speedup), CELL_HEIGHT / 2, 4.5, _dot_css(row), _interval_words(row))
    return svg.render()


def scatter_figure(rows: Sequence[ExperimentSummary]) -> str:
    """Predicted against measured speedup; the diagonal is a perfect prediction, the band is 20 % either way."""
    size, left, bottom = HALF, 52.0, HALF - 44.0
    x, y = speedup_scale(rows, left, size - 16), speedup_scale(rows, bottom, 16)
    svg = Svg(size, size, "predicted against measured speedup of every experiment")
    ticks = speedup_ticks(x)
    x_axis(svg, x, ticks, 16, bottom, lambda v: f"{v:g}x")
    y_axis(svg, y, ticks, left, size - 16, lambda v: f"{v:g}x")
    low, high = x.low, x.high
    upper = [(high, high), (high / BAND, high), (low, low * BAND)]
    lower = [(low, low), (low * BAND, low), (high, high / BAND)]
    svg.polygon([(x(a), y(b)) for a, b in lower + upper], "band")
    svg.line(x(low), y(low), x(high), y(high), "diagonal")
    svg.text((left + size - 16) / 2, size - 6, "predicted speedup", "tick", "middle")
    svg.text(left, 10, "measured speedup", "tick")
    _scatter_points(svg, rows, x, y)
    return svg.render()


def _scatter_points(svg: Svg, rows: Sequence[ExperimentSummary], x: Scale, y: Scale) -> None:
    """Dots with their names; names that would overlap move down and keep a line to their dot."""
    points = [
        (x(row.predicted_speedup.mid), y(row.measured_speedup), row)
        for row in rows
        if row.predicted_speedup is not None and row.measured_speedup is not None
    ]
    heights = spread([point[1] for point in points], 14.0)
    for (px, py, row), label_y in zip(points, heights, strict=True):
        fits = px + 28 + text_width(row.id, 12) < x.end
        label_x = px + 24 if fits else px - 24
        svg.line(px, py, label_x, label_y, "leader")
        svg.dot(px, py, 4.5, _dot_css(row), f"{row.id}: {_interval_words(row)}")
        svg.text(label_x + (3 if fits else -3), label_y + 4, row.id, "point", "start" if fits else "end")


def all_reduce_figure(rows: Sequence[AllReduceRow], marks: Sequence[MessageMark]) -> str:
    """Latency over message size, both logarithmic, with this model's message sizes marked."""
    curves = _curves(rows)
    values = [us for curve in curves for _, us in curve.points]
    sizes = [size for curve in curves for size, _ in curve.points] + [mark.num_bytes for mark in marks]
    left, right, top = 64.0, WIDTH - 150, 16.0 * len(marks) + 8
    bottom = top + max(270.0, 17.0 * len(curves))
    x = Scale(min(sizes) / 1.3, max(sizes) * 1.3, left, right, log=True)
    y = Scale(min(values) / 1.4, max(values) * 1.4, bottom, top, log=True)
    svg = Svg(WIDTH, bottom + 40, "all-reduce latency over message size")
    x_axis(svg, x, log_ticks(x.low, x.high, 4), top, bottom, lambda v: format_bytes(round(v)))
    y_axis(svg, y, log_ticks(y.low, y.high, 10, (1, 2, 5)), left, right, lambda us: format_ms(us / US_PER_MS))
    svg.text((left + right) / 2, bottom + 34, "bytes of one rank's message", "tick", "middle")
    _mark_sizes(svg, x, marks, bottom)
    _draw_curves(svg, x, y, curves, right)
    return svg.render()


@dataclass(frozen=True)
class _Curve:
    """One backend's latencies by message size."""

    name: str
    css: str
    points: list[tuple[float, float]]


def _curves(rows: Sequence[AllReduceRow]) -> list[_Curve]:
    """The slowest backend has the page's colour of communication; a fused norm is a broken line of the same colour."""
    points: dict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.median_us:
            points[row.backend, row.fused].append((row.num_bytes, row.median_us))
    slowest_us: dict[str, float] = {}
    for (backend, _), curve in points.items():
        slowest_us[backend] = max(slowest_us.get(backend, 0.0), *(us for _, us in curve))
    style = {backend: min(i, MAX_STYLE) for i, backend in enumerate(sorted(slowest_us, key=lambda b: -slowest_us[b]))}
    return [
        _Curve(
            name=f"{backend} + fused norm" if fused else backend,
            css=f"backend-{style[backend]}" + (" fused" if fused else ""),
            points=sorted(curve),
        )
        for (backend, fused), curve in sorted(points.items())
    ]


def _mark_sizes(svg: Svg, x: Scale, marks: Sequence[MessageMark], bottom: float) -> None:
    """One dashed line per size. A label stands right of its line, or left of it where the next line is too near."""
    next_x = x.end
    for i, mark in enumerate(sorted(marks, key=lambda mark: -mark.num_bytes)):
        line_x, y = x(mark.num_bytes), 12.0 + 16.0 * i
        text = f"{mark.label}: {format_bytes(round(mark.num_bytes))}"
        fits = line_x + text_width(text, 12) + 5 < next_x
        svg.line(line_x, y - 10, line_x, bottom, "mark")
        svg.text(line_x + (5 if fits else -5), y, text, "mark-label", "start" if fits else "end")
        next_x = line_x


def _draw_curves(svg: Svg, x: Scale, y: Scale, curves: Sequence[_Curve], right: float) -> None:
    ends = spread([y(curve.points[-1][1]) for curve in curves], 16.0)
    for curve, end in zip(curves, ends, strict=True):
        svg.path([(x(size), y(us)) for size, us in curve.points], f"curve {curve.css}")
        for size, us in curve.points:
            tip = f"{curve.name}, {format_bytes(round(size))}: {format_ms(us / US_PER_MS)}"
            svg.dot(x(size), y(us), 3, f"curve-dot {curve.css}", tip)
        svg.text(right + 8, end + 4, curve.name, f"curve-label {curve.css}")


def draft_length_figure(acceptance: AcceptanceCurve) -> str:
    """Acceptance length that K drafts give against the one they need; the gap between the curves is the gain."""
    points = acceptance.points
    plain_ms = acceptance.plain_ms or 0.0
    left, right, top, bottom = 52.0, HALF - 84, 20.0, 250.0
    gained = [(float(point.num_proposed_drafts), point.accept_length) for point in points]
    needed = [(float(point.num_proposed_drafts), point.cycle_ms / plain_ms) for point in points] if plain_ms else []
    x = Scale(points[0].num_proposed_drafts, points[-1].num_proposed_drafts, left + 8, right - 8)
    y = Scale(0.0, max(value for _, value in gained + needed) * 1.08, bottom, top)
    svg = Svg(HALF, bottom + 40, "acceptance length given and needed, by number of proposed drafts")
    x_axis(svg, x, [point.num_proposed_drafts for point in points], top, bottom, lambda v: f"{v:g}")
    y_axis(svg, y, round_ticks(0.0, y.high), left, right, lambda v: f"{v:g}")
    svg.text(left, 10, "tokens per cycle", "tick")
    svg.text((left + right) / 2, bottom + 34, "proposed drafts", "tick", "middle")
    ends = spread([y(curve[-1][1]) for curve in (gained, needed) if curve], 16.0)
    named = [(name, curve) for name, curve in (("given", gained), ("needed", needed)) if curve]
    for (name, curve), end in zip(named, ends, strict=True):
        svg.path([(x(k), y(value)) for k, value in curve], f"curve {name}")
        svg.text(right + 4, end + 4, name, f"{name}-label")
    _mark_best(svg, acceptance, x, y, bottom)
    return svg.render()


def _mark_best(svg: Svg, acceptance: AcceptanceCurve, x: Scale, y: Scale, bottom: float) -> None:
    for point in acceptance.points:
        if point.num_proposed_drafts == acceptance.chosen:
            svg.line(x(point.num_proposed_drafts), y(point.accept_length), x(point.num_proposed_drafts), bottom, "mark")
            svg.dot(x(point.num_proposed_drafts), y(point.accept_length), 4.5, "measured")


def acceptance_figure(shares: Sequence[float]) -> str:
    """Share of verify passes whose draft i and all before it were correct."""
    left, right, top, bottom = 52.0, HALF - 16, 20.0, 250.0
    y = Scale(0.0, 1.0, bottom, top)
    svg = Svg(HALF, bottom + 40, "share of verify passes by number of correct drafts")
    y_axis(svg, y, [0, 0.25, 0.5, 0.75, 1.0], left, right, lambda v: f"{100 * v:.0f} %")
    svg.text(left, 10, "verify passes in which this draft was correct", "tick")
    svg.text((left + right) / 2, bottom + 34, "position of the draft", "tick", "middle")
    step = (right - left) / len(shares)
    for i, share in enumerate(shares):
        middle = left + (i + 0.5) * step
        width = min(step * 0.6, 56.0)
        svg.rect(middle - width / 2, y(share), width, bottom - y(share), "phase-draft", f"{100 * share:.1f} %")
        svg.text(middle, y(share) - 6, f"{100 * share:.0f} %", "label", "middle")
        svg.text(middle, bottom + 16, str(i + 1), "tick", "middle")
    return svg.render()


def _dot_css(row: ExperimentSummary) -> str:
    return "measured-failed" if row.state == "failed" else "measured"


def _interval_words(row: ExperimentSummary) -> str:
    predicted = row.predicted_speedup
    words = f"predicted {predicted.low:.2f} to {predicted.high:.2f}x" if predicted else "no prediction"
    return words if row.measured_speedup is None else f"{words}, measured {row.measured_speedup:.2f}x"
