"""What the engine has done so far: anatomy of its cycles, collectives, drafts, passes, tokens.

Totals only grow; the difference of two snapshots is what ran between them. Phases of a cycle do not overlap and sum to
its total: whatever is in no named phase is `host`. Counted on rank 0. Knows no torch and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fastverify.units import NS_PER_S

CycleKind = Literal["speculative", "plain"]

# Parts of a cycle of each kind; `host` is the rest.
CYCLE_PHASES: Mapping[CycleKind, tuple[str, ...]] = {
    "speculative": ("draft", "verify_compute", "verify_all_reduce", "verify_gather", "extend", "accept", "host"),
    "plain": ("plain_compute", "plain_all_reduce", "plain_gather", "accept", "host"),
}


class CycleKey(NamedTuple):
    """`num_rows` counts the rows of the target pass over all `batch` requests."""

    kind: CycleKind
    batch: int
    num_rows: int


@dataclass
class CycleTotals:
    """Sums over the cycles of one key, in nanoseconds by phase."""

    count: int = 0
    total_ns: int = 0
    phase_ns: Counter[str] = field(default_factory=Counter)

    def to_dict(self, key: CycleKey) -> dict[str, Any]:
        """One row of `EngineStats.to_dict()["cycles"]`."""
        phases = {f"{phase}_s": self.phase_ns[phase] / NS_PER_S for phase in CYCLE_PHASES[key.kind]}
        return {**key._asdict(), "count": self.count, **phases, "total_s": self.total_ns / NS_PER_S}


@dataclass
class SpeculationTotals:
    """Drafts over all requests; `num_verify_passes` counts request x pass."""

    num_verify_passes: int = 0
    num_proposed_drafts: int = 0
    num_correct_drafts: int = 0
    correct_drafts_per_position: list[int] = field(default_factory=list)

    def add(self, num_proposed_drafts: int, num_correct_drafts: int) -> None:
        """One verify pass of one request."""
        self.num_verify_passes += 1
        self.num_proposed_drafts += num_proposed_drafts
        self.num_correct_drafts += num_correct_drafts
        per_position = self.correct_drafts_per_position
        per_position.extend([0] * (num_correct_drafts - len(per_position)))
        for position in range(num_correct_drafts):
            per_position[position] += 1

    def to_dict(self) -> dict[str, Any]:
        """Copy as plain values."""
        return {
            "num_verify_passes": self.num_verify_passes,
            "num_proposed_drafts": self.num_proposed_drafts,
            "num_correct_drafts": self.num_correct_drafts,
            "correct_drafts_per_position": list(self.correct_drafts_per_position),
        }


@dataclass
class EngineTotals:
    """The counters that a rank keeps while it runs."""

    cycles: dict[CycleKey, CycleTotals] = field(default_factory=dict)
    speculation: SpeculationTotals = field(default_factory=SpeculationTotals)
    passes: Counter[str] = field(default_factory=Counter)
    prefill_ns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add_cycle(self, key: CycleKey, phase_ns: Mapping[str, int], total_ns: int) -> None:
        """One cycle; what `phase_ns` leaves of `total_ns` is host time."""
        totals = self.cycles.setdefault(key, CycleTotals())
        totals.count += 1
        totals.total_ns += total_ns
        totals.phase_ns.update(phase_ns)
        totals.phase_ns["host"] += total_ns - sum(phase_ns.values())


@dataclass(frozen=True)
class EngineStats:
    """Snapshot of rank 0 as plain values; see the README of /metrics names in engine/http."""

    cycles: Sequence[Mapping[str, Any]]
    collectives: Sequence[Mapping[str, Any]]
    speculation: Mapping[str, Any]
    passes: Mapping[str, int]
    prefill_s: float
    tokens: Mapping[str, int]
    num_running: int
    num_waiting: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "cycles": [dict(cycle) for cycle in self.cycles],
            "collectives": [dict(collective) for collective in self.collectives],
            "speculation": dict(self.speculation),
            "passes": dict(self.passes),
            "prefill_s": self.prefill_s,
            "tokens": dict(self.tokens),
            "requests": {"running": self.num_running, "waiting": self.num_waiting},
        }
