"""The few SVG marks and axes that the report's figures are made of, as text and without a drawing library.

Knows nothing of speculation. Colours and fonts are CSS classes, so that one style sheet serves light, dark and print
and a figure needs no script. Coordinates are user units of a fixed width that the page scales.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

# Arbitrary: wide enough for every common interface font, so a label that is said to fit does fit.
CHARACTER_WIDTH = 0.6
FONT_SIZE = 13.0


def text_width(text: str, font_size: float = FONT_SIZE) -> float:
    """Upper estimate of a label's width in user units."""
    return len(text) * font_size * CHARACTER_WIDTH


def number(value: float) -> str:
    """A coordinate with at most two decimals: `12.5`, `3`."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass
class Svg:
    """One figure: marks are appended in painting order; `label` is what a screen reader says."""

    width: float
    height: float
    label: str
    parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, css: str, tip: str = "") -> None:
        """A rectangle; `tip` shows on hover."""
        self._add("rect", css, tip, x=x, y=y, width=max(width, 0.0), height=height)

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        """A straight line."""
        self._add("line", css, "", x1=x1, y1=y1, x2=x2, y2=y2)

    def dot(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        """A filled circle."""
        self._add("circle", css, tip, cx=x, cy=y, r=radius)

    def path(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """A line through points."""
        steps = " ".join(f"{'L' if i else 'M'}{number(x)} {number(y)}" for i, (x, y) in enumerate(points))
        self.parts.append(f'<path class="{css}" d="{steps}"/>')

    def polygon(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """A filled area."""
        corners = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.parts.append(f'<polygon class="{css}" points="{corners}"/>')

    def text(self, x: float, y: float, text: str, css: str = "label", anchor: str = "start") -> None:
        """A label whose baseline starts, ends or is centred at (x, y)."""
        self.parts.append(
            f'<text class="{css}" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def render(self) -> str:
        """The figure as an inline `<svg>` element."""
        head = f'<svg viewBox="0 0 {number(self.width)} {number(self.height)}" role="img" '
        return head + f'aria-label="{escape(self.label)}">' + "".join(self.parts) + "</svg>"

    def _add(self, tag: str, css: str, tip: str, **attributes: float) -> None:
        numbers = " ".join(f'{name}="{number(value)}"' for name, value in attributes.items())
        inner = f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"
        self.parts.append(f'<{tag} class="{css}" {numbers}{inner}')


@dataclass(frozen=True)
class Scale:
    """Maps values of `low..high` to positions `start..end`, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of a value; values outside are placed at the nearer end."""
        clamped = min(max(value, self.low), self.high)
        low, high, clamped = (math.log(v) if self.log else v for v in (self.low, self.high, clamped))
        share = (clamped - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def round_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` round values within `low..high`: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, base: int = 10, multiples: Sequence[float] = (1.0,)) -> list[float]:
    """Powers of `base` times each of `multiples` within `low..high`."""
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    ticks = [multiple * float(base) ** power for power in range(first, last + 1) for multiple in multiples]
    return [tick for tick in sorted(ticks) if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def x_axis(
    svg: Svg, scale: Scale, ticks: Sequence[float], top: float, bottom: float, name: Callable[[float], str]
) -> None:
    """Vertical grid lines from `top` to `bottom` with their values below."""
    for tick in ticks:
        svg.line(scale(tick), top, scale(tick), bottom, "grid")
        svg.text(scale(tick), bottom + 16, name(tick), "tick", "middle")


def y_axis(
    svg: Svg, scale: Scale, ticks: Sequence[float], left: float, right: float, name: Callable[[float], str]
) -> None:
    """Horizontal grid lines from `left` to `right` with their values at the left."""
    for tick in ticks:
        svg.line(left, scale(tick), right, scale(tick), "grid")
        svg.text(left - 8, scale(tick) + 4, name(tick), "tick", "end")


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Label positions at least `gap` apart, in the same order, moved as little as possible (least squares).

    Without their gaps the positions need only not decrease, so labels that would overlap share the mean of their block.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks: list[tuple[float, int]] = []
    for rank, i in enumerate(order):
        mean, size = positions[i] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            above, above_size = blocks.pop()
            mean = (mean * size + above * above_size) / (size + above_size)
            size += above_size
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    placed = [0.0] * len(positions)
    for rank, i in enumerate(order):
        placed[i] = flat[rank] + rank * gap
    return placed
