"""The all-reduce table: what each backend of this machine takes at each message size, as measured by the benchmark.

Rows come from `fastverify bench all-reduce --json`. Between two sizes the time is linear in bytes (the alpha-beta
model); below the smallest it is flat, above the largest the last slope goes on. It knows no engine: in an engine ranks
also wait for each other, see collective_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.alpha_beta import interpolate_us
from fastverify.tuning.interval import Interval

# Source: launch-to-launch noise of 1.5 to 4 % (field reports), doubled; the spread of one run may hide it.
MIN_RELATIVE_WIDTH = 0.08


class AllReduceRow(BaseModel):
    """One measured point. `median_us` is None where it did not run, and `reason` says why."""

    # Further columns of a newer benchmark are no concern of the model.
    model_config = ConfigDict(frozen=True, extra="ignore")

    backend: str
    num_bytes: int
    world_size: int
    dtype: str
    fused: bool
    median_us: float | None
    iqr_us: float | None = None
    correct: bool | None = None
    reason: str | None = None


class AllReduceTable:
    """Rows of one world size and dtype."""

    def __init__(self, rows: Iterable[AllReduceRow]) -> None:
        self.rows = tuple(sorted(rows, key=lambda row: (row.backend, row.fused, row.num_bytes)))

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> AllReduceTable:
        """Table from decoded JSON rows."""
        return cls(AllReduceRow.model_validate(record) for record in records)

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends with at least one measured size."""
        return tuple(dict.fromkeys(row.backend for row in self.rows if row.median_us is not None))

    def wrong_sizes(self, backend: str) -> tuple[int, ...]:
        """Sizes at which this backend did not give the right sum."""
        return tuple(sorted({row.num_bytes for row in self._rows_of(backend) if row.correct is False}))

    def checked(self, backend: str) -> bool:
        """Whether any row of this backend was compared with the right sum."""
        return any(row.correct is not None for row in self._rows_of(backend))

    def reason_against(self, backend: str) -> str | None:
        """Why this backend has no measured row; None where it has one or was never asked."""
        reasons = [row.reason for row in self._rows_of(backend) if row.reason]
        return reasons[0] if reasons and backend not in self.backends else None

    def latency_us(self, backend: str, num_bytes: float, *, fused: bool) -> Interval | None:
        """Time of one call; None where the backend has no row of this kind."""
        points = [
            (row.num_bytes, row.median_us, row.iqr_us or 0.0)
            for row in self._rows_of(backend)
            if row.fused is fused and row.median_us is not None
        ]
        if not points:
            return None
        mid = interpolate_us([(size, median) for size, median, _ in points], num_bytes)
        half_width = max(mid * MIN_RELATIVE_WIDTH, interpolate_us([(size, iqr) for size, _, iqr in points], num_bytes))
        return Interval.around(mid, max(mid - half_width, 0.0), mid + half_width)

    def _rows_of(self, backend: str) -> list[AllReduceRow]:
        return [row for row in self.rows if row.backend == backend]
