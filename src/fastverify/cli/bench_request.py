"""What the options of `fastverify bench all-reduce` ask for, before it is known what this machine can do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastverify.errors import ConfigError, EnvironmentMissingError
from fastverify.units import ITEM_BYTES

ROWS = (1, 2, 4, 8, 16, 32, 64)
# Of our own kernels (comm/cuda/workspace.py); this module loads without torch.
MAX_GPU_RANKS = 8
MODES = {"": ("graph",), "graph": ("graph",), "eager": ("eager",), "both": ("graph", "eager")}


@dataclass(frozen=True)
class Request:
    """Options of every device; "" and None leave it to the device."""

    sizes: str
    model: Path | None
    batch: int
    k: int
    world_size: int | None
    dtype: str
    iterations: int
    backends: str
    hidden_size: int = 0

    def __post_init__(self) -> None:
        if self.model is not None and self.sizes:
            raise ConfigError("--model works out the sizes, so --sizes cannot be given too.")
        if self.model is not None and self.hidden_size:
            raise ConfigError("--model has a hidden size, so --hidden-size cannot be given too.")

    def row_sizes(self, dtype: str) -> tuple[int, ...]:
        """Messages of 1 to 64 rows of `--hidden-size`, which are measured where no sizes are given."""
        row_bytes = self.hidden_size * ITEM_BYTES[dtype]
        return tuple(num_rows * row_bytes for num_rows in ROWS) if row_bytes and not self.sizes else ()


@dataclass(frozen=True)
class GpuRequest:
    """Options that only GPUs have."""

    virtual_ranks: int = 0
    nccl_settings: str = ""
    mode: str = ""
    cold_l2: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"--mode must be one of {', '.join(filter(None, MODES))}, got {self.mode!r}.")
        if self.virtual_ranks and not 2 <= self.virtual_ranks <= MAX_GPU_RANKS:
            raise ConfigError(f"--virtual-ranks needs 2 to {MAX_GPU_RANKS} ranks, got {self.virtual_ranks}.")

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes to measure."""
        return MODES[self.mode]

    def require_unused(self) -> None:
        """Raises ConfigError where one of them was given for a run on the CPU."""
        given = [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value]
        if given:
            raise ConfigError(
                f"{', '.join(given)}: for GPUs only, and this run is on the CPU. Add --device cuda if there is a GPU."
            )


def require_times(medians_us: Iterable[float | None]) -> None:
    """After the report. Raises EnvironmentMissingError where nothing ran, so that a script does not read it as fine."""
    if all(median_us is None for median_us in medians_us):
        raise EnvironmentMissingError("nothing that was asked for ran here; the report says why. Try other --backends.")


def split_names(text: str) -> tuple[str, ...]:
    """Names of a comma-separated option."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else ()
