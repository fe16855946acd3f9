"""What every all-reduce benchmark can measure, on CPUs and on GPUs. Plain arithmetic, no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastverify.errors import ConfigError
from fastverify.units import MAX_MESSAGE_BYTES, format_bytes


def check_world_size(world_size: int) -> None:
    """Raises ConfigError where so many ranks cannot be started."""
    if not 2 <= world_size <= 64:
        raise ConfigError(f"an all-reduce needs 2 to 64 ranks, got world_size {world_size}.")


def check_largest(sizes: Sequence[int]) -> None:
    """Raises ConfigError where a rank could not hold its messages. `sizes`: bytes, one or more."""
    if max(sizes) > MAX_MESSAGE_BYTES:
        raise ConfigError(
            f"a size is at most {format_bytes(MAX_MESSAGE_BYTES)}, since every rank holds several messages, got "
            f"{max(sizes)} bytes."
        )
