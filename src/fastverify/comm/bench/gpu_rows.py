"""What the GPU benchmark measures and what it hands back: settings, one case, one row. Plain values, no GPU, no torch.

A *way* is a backend with the setting it ran under: NCCL under another setting is another way to run the same backend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fastverify.comm.bench.limits import check_largest, check_world_size
from fastverify.comm.gpu.table import NORM, Op
from fastverify.errors import ConfigError
from fastverify.units import ITEM_BYTES

MODES = ("graph", "eager")
DEFAULT_SETTING = "default"
# 1, 4, 12 and 16 rows of Kimi-K2.5 (hidden size 7168, bf16) among powers of two.
DEFAULT_SIZES = tuple(sorted([*(4096 << shift for shift in range(11)), *(rows * 7168 * 2 for rows in (1, 4, 12, 16))]))
_BESIDE_THE_TABLE = ("samples_us", "is_candidate", "remark")
# Rows of the fused norm where no model is given: the widest that the size holds whole rows of.
_HIDDEN_SIZES = (7168, 4096, 2048, 1024, 512)


@dataclass(frozen=True)
class GpuBenchConfig:
    """What to measure. `virtual` ranks share one process and one GPU; `calls` is the length of a graph."""

    sizes: tuple[int, ...]
    world_size: int
    backends: tuple[str, ...]
    nccl_settings: tuple[str, ...] = (DEFAULT_SETTING,)
    modes: tuple[str, ...] = ("graph",)
    dtype: str = "bfloat16"
    iterations: int = 200
    hidden_size: int = 0
    calls: int = 50
    cold_l2: bool = False
    virtual: bool = False
    tune: bool = False

    def __post_init__(self) -> None:
        for name, given, allowed in (
            ("a dtype", (self.dtype,), ITEM_BYTES),
            ("a mode", self.modes, MODES),
        ):
            unknown = [value for value in given if value not in allowed]
            if unknown or not given:
                raise ConfigError(f"{name} is one of {', '.join(allowed)}, got {', '.join(unknown) or 'none'}.")
        check_world_size(self.world_size)
        if self.iterations < 3 or self.calls < 1:
            raise ConfigError(
                f"a median and its spread need 3 or more iterations and a graph 1 or more calls, got "
                f"{self.iterations} and {self.calls}."
            )
        wrong = [num_bytes for num_bytes in self.sizes if num_bytes < 1 or num_bytes % self.itemsize]
        if wrong or not self.sizes:
            raise ConfigError(f"sizes are whole elements of {self.dtype}, at least one size, got {wrong or 'none'}.")
        row_bytes = self.hidden_size * self.itemsize
        if row_bytes and any(num_bytes % row_bytes for num_bytes in self.sizes):
            raise ConfigError(f"sizes are whole rows of {row_bytes} bytes with this hidden size, got {self.sizes}.")
        if not self.backends:
            raise ConfigError("give at least one backend.")
        check_largest(self.sizes)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    def shape(self, num_bytes: int) -> tuple[int, int]:
        """Rows, and elements of one row of the fused norm, at this size."""
        row_elements = self._row_elements(num_bytes)
        return num_bytes // self.itemsize // row_elements, row_elements

    def _row_elements(self, num_bytes: int) -> int:
        num_elements = num_bytes // self.itemsize
        if self.hidden_size:
            return self.hidden_size
        for hidden_size in _HIDDEN_SIZES:
            if num_elements % hidden_size == 0:
                return hidden_size
        return math.gcd(num_elements, 512)


@dataclass(frozen=True)
class CaseKey:
    """One thing to time. `candidate` numbers the launches that tuning tries; None is what the backend picks.

    `separate`: the norm as torch's own kernel after the sum, of a backend that could fuse it.
    """

    backend: str
    num_bytes: int
    fused: bool
    mode: str
    candidate: int | None = None
    separate: bool = False

    @property
    def op(self) -> Op:
        """The operation as the chooser's table names it."""
        return NORM if self.fused else "all_reduce"

    @property
    def row_backend(self) -> str:
        """What the row calls it."""
        return f"{self.backend}+norm" if self.separate else self.backend


@dataclass(frozen=True)
class Prepared:
    """A rank's answer once a case is set up: whether its first answers were right, and what will be timed."""

    ok: bool
    reason: str = ""
    correct: bool = True
    num_calls: int = 0
    launch: str | None = None


@dataclass(frozen=True)
class GpuBenchRow:
    """One line of the table. Times are None where it did not run, and `reason` says why. `num_calls`: per sample."""

    backend: str
    num_bytes: int
    world_size: int
    dtype: str
    fused: bool
    mode: str
    setting: str | None = None
    launch: str | None = None
    num_calls: int | None = None
    median_us: float | None = None
    iqr_us: float | None = None
    correct: bool | None = None
    reason: str | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    is_candidate: bool = False
    remark: str | None = None

    @property
    def way(self) -> str:
        """Name of the column: the backend, with the NCCL setting where it is not the default."""
        return way_name(self.backend, self.setting)

    def to_dict(self) -> dict[str, object]:
        """The row without its samples and what is said beside the table."""
        return {name: value for name, value in vars(self).items() if name not in _BESIDE_THE_TABLE}


@dataclass(frozen=True)
class GpuBenchResult:
    """All rows, how each way was set up or why it is missing, the time of an empty kernel, and remarks on the times."""

    rows: tuple[GpuBenchRow, ...]
    setups: dict[str, str]
    empty_us: float | None = None
    remarks: tuple[str, ...] = ()


def way_name(backend: str, setting: str | None) -> str:
    """`nccl` under its default setting, `nccl:ll` under another."""
    return backend if setting in (None, DEFAULT_SETTING) else f"{backend}:{setting}"


def fastest(rows: Iterable[GpuBenchRow]) -> GpuBenchRow | None:
    """The fastest of these rows that gave the right answer."""
    timed = [(row.median_us, i, row) for i, row in enumerate(rows) if row.median_us is not None and row.correct]
    return min(timed)[2] if timed else None
