"""Interval: a predicted quantity with its plausible range.

Plain interval arithmetic: a result holds every combination of its operands. Half-widths are not added in quadrature,
since the phases of a cycle mostly share the cause of their error, such as how long ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from fastverify.errors import ConfigError


@dataclass(frozen=True)
class Interval:
    """`low <= mid <= high`; a measured number has all three equal."""

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise ConfigError(f"low <= mid <= high must hold, got ({self.low}, {self.mid}, {self.high}).")

    @classmethod
    def exact(cls, value: float) -> Self:
        """A number without doubt."""
        return cls(low=value, mid=value, high=value)

    @classmethod
    def around(cls, mid: float, low: float, high: float) -> Self:
        """Ends that rounding or clamping may have pushed past the middle are moved to it."""
        return cls(low=min(low, mid), mid=mid, high=max(high, mid))

    def __add__(self, other: Interval) -> Interval:
        return Interval.around(self.mid + other.mid, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return self + other.scaled(-1.0)

    def __mul__(self, other: Interval) -> Interval:
        """Product of two intervals that are not negative."""
        return Interval.around(self.mid * other.mid, self.low * other.low, self.high * other.high)

    def __truediv__(self, other: Interval) -> Interval:
        """Quotient of a not negative interval and a positive one."""
        return Interval.around(self.mid / other.mid, self.low / other.high, self.high / other.low)

    def scaled(self, factor: float) -> Interval:
        """Every end times a number; a negative one swaps the ends."""
        ends = (self.low * factor, self.high * factor)
        return Interval.around(self.mid * factor, min(ends), max(ends))

    def at_least(self, floor: float) -> Interval:
        """Every end raised to `floor` where it lies below."""
        return Interval(low=max(self.low, floor), mid=max(self.mid, floor), high=max(self.high, floor))

    def at_most(self, ceiling: float) -> Interval:
        """Every end lowered to `ceiling` where it lies above."""
        return Interval(low=min(self.low, ceiling), mid=min(self.mid, ceiling), high=min(self.high, ceiling))

    def contains(self, value: float) -> bool:
        """Whether a measured value fell into the range."""
        return self.low <= value <= self.high


ZERO = Interval.exact(0.0)


def total(terms: Iterable[Interval]) -> Interval:
    """Sum of terms."""
    return sum(terms, ZERO)
