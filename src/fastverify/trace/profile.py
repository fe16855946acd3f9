"""The answer to a profiler file, as typed rows: what `fastverify profile --json` prints and what diagnosis reads.

All times are microseconds of device time, medians over the passes of a row unless a name says otherwise. The words are
defined in docs/traces.md; a change of meaning raises SCHEMA_VERSION.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.trace.spans import PassKind

SCHEMA_VERSION = 1


class Row(BaseModel):
    """Read-only, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Totals(Row):
    """The whole file of one rank. `exposed` is communication with no compute under it; copies cover nothing."""

    span_us: float
    busy_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    overlapped_communication_us: float
    memory_us: float
    idle_us: float
    num_collectives: int
    num_kernels: int


class CollectiveRow(Row):
    """Collectives of one kind and size inside the passes of one row; durations include waiting for other ranks."""

    op: str
    backend: str
    algorithm: str
    protocol: str
    is_fused: bool
    num_bytes: int | None
    bytes_source: Literal["file", "model and rows", "unknown"]
    count_per_pass: float
    us_per_pass: float
    median_us: float
    min_us: float
    max_us: float


class PassRow(Row):
    """All passes of one kind, phase, batch and row count; `waiting_us` and `transfer_us` need several ranks.

    `gap_us` is time inside the wall span when nothing ran: `launch_gap_us` of it because the host launched too late,
    `graph_gap_us` of it between kernels of one graph, `piece_gap_us` of it where a graph begins or ends, late or not.
    `idle_before_us` is device idle time since the pass before.
    """

    kind: PassKind
    phase: str
    batch: int | None
    rows: int | None
    count: int
    all_reduces_per_pass: float
    all_reduces_min: int
    all_reduces_max: int
    collectives_per_pass: float
    kernels_per_pass: float
    graph_launches_per_pass: float
    wall_us: float
    wall_min_us: float
    wall_max_us: float
    busy_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    memory_us: float
    gap_us: float
    launch_gap_us: float
    graph_gap_us: float
    piece_gap_us: float = 0.0
    idle_before_us: float
    waiting_us: float | None = None
    transfer_us: float | None = None
    is_launch_bound: bool
    backends: tuple[str, ...]
    collectives: tuple[CollectiveRow, ...]


class HealthRow(Row):
    """One fault of the file: how often, and one example."""

    fault: str
    count: int
    example: str


class SizeRow(Row):
    """One bar of the histogram of message sizes."""

    op: str
    num_bytes: int
    count: int


class RankRow(Row):
    """One rank. Waiting is what a collective lasts beyond its fastest rank; None where ranks could not be matched."""

    rank: int
    world_size: int
    source: str
    totals: Totals
    num_matched_collectives: int | None = None
    waiting_us: float | None = None
    first_waiting_us: float | None = None
    """The part of the waiting in the first collective: the start of the other ranks' profilers, not of the program."""
    transfer_us: float | None = None
    last_arrivals: int | None = None
    clock_offset_us: float | None = None
    is_straggler: bool = False


class Profile(Row):
    """Everything one set of profiler files says; totals and passes are those of the lowest rank."""

    schema_version: int = SCHEMA_VERSION
    verdict: str
    sources: tuple[str, ...]
    program: str
    device: str
    rule: str
    coverage: float
    totals: Totals
    passes: tuple[PassRow, ...]
    sizes: tuple[SizeRow, ...]
    health: tuple[HealthRow, ...]
    ranks: tuple[RankRow, ...]

    def passes_of(self, kind: PassKind, phase: str | None = None) -> tuple[PassRow, ...]:
        """Rows of one kind, of one phase where that is given."""
        return tuple(row for row in self.passes if row.kind is kind and phase in (None, row.phase))
