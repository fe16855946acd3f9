"""What one reader found in one document: evidence, decode rates by batch, and remarks.

Evidence names are fields of reported.py: a field of an arm by its own name (`num_draft_steps`), others with their path
(`log.cuda_graph`, `hardware.packages.torch`). collect.py puts them together. Knows no server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastverify.diagnosis.evidence import Evidence
from fastverify.servers.server import Arm

AnyArm = Arm | Literal["both"]
# Arbitrary: a value is a number, a name or one line of a log; what is longer is text that nobody compares.
MAX_VALUE_CHARS = 400
# A whole number beyond it is text: it does not fit a float.
MAX_NUMBER = 1e300


@dataclass(frozen=True)
class Rate:
    """Output tokens per second of the whole batch, as a log or a benchmark gives it."""

    arm: AnyArm
    total_tok_s: float
    batch: int
    source: str
    line: int | None
    num_samples: int = 1
    accept_length: float | None = None
    accept_rate_per_position: tuple[float, ...] = ()
    is_benchmark: bool = False
    """Measured by a client under a constant load, which outranks what a log sampled."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Drafting settings, where one file sweeps them."""


@dataclass(frozen=True)
class Reading:
    """The result of one reader."""

    kind: str
    source: str
    evidence: tuple[Evidence, ...] = ()
    rates: tuple[Rate, ...] = ()
    notes: tuple[str, ...] = ()

    def values(self, name: str) -> tuple[float | str, ...]:
        """Values of every piece of this name, in order."""
        return tuple(piece.value for piece in self.evidence if piece.name == name)


@dataclass
class ReadingBuilder:
    """Gathers the pieces of one reading."""

    kind: str
    source: str
    evidence: list[Evidence] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, value: object, line: int | None, *, unit: str = "", arm: AnyArm = "both", once: bool = False
    ) -> None:
        """Add one piece. None and numbers that are not finite are no evidence; with `once`, the first one stays."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return
        if once and any(piece.name == name and piece.arm == arm for piece in self.evidence):
            return
        known = _plain_value(value)
        self.evidence.append(Evidence(name=name, value=known, unit=unit, arm=arm, source=self.source, line=line))

    def build(self) -> Reading:
        """The reading as it stands."""
        return Reading(self.kind, self.source, tuple(self.evidence), tuple(self.rates), tuple(self.notes))


def number(value: Any) -> float | None:
    """A finite number, or text of one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def positive(value: Any) -> float | None:
    """A number above 0, else None."""
    found = number(value)
    return found if found is not None and found > 0 else None


def whole(value: Any) -> int | None:
    """A whole number above 0, else None."""
    found = positive(value)
    return int(found) if found is not None and found == int(found) and found < 2**63 else None


def _plain_value(value: object) -> float | str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and abs(value) <= MAX_NUMBER:
        return float(value)
    return str(value)[:MAX_VALUE_CHARS]
