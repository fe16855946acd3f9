"""Where the areas of every protocol lie in a rank's inbox memory. Plain arithmetic, no GPU.

The layout is the one that sources/inbox.cuh describes. Protocols never share memory: lines left by one would look like
data to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastverify.comm.cuda.launch import Protocol
from fastverify.errors import ConfigError

NUM_SLOTS = 2
FLAG_STRIDE = 64  # must match FLAG_STRIDE in sources/all_reduce.cu
# The smallest chunk that a flag stands for: one warp with one unit of 16 bytes per thread.
_MIN_CHUNK_BYTES = 512
EMPTY_BYTE = 0xFF


@dataclass(frozen=True)
class Region:
    """Memory of one protocol within a rank's inbox; it starts as `fill` in every byte."""

    offset: int
    num_bytes: int
    area_bytes: int
    fill: int


@dataclass(frozen=True)
class Layout:
    """Inbox of one rank for messages of up to `max_bytes`."""

    world_size: int
    max_bytes: int

    def __post_init__(self) -> None:
        if not 2 <= self.world_size <= 8:
            raise ConfigError(f"the CUDA all-reduce needs 2 to 8 ranks, got {self.world_size}.")
        if self.max_bytes < 16:
            raise ConfigError(f"an inbox must take messages of at least 16 bytes, got {self.max_bytes}.")

    @property
    def max_chunks(self) -> int:
        """Flags that one area may need."""
        return -(-self.max_bytes // _MIN_CHUNK_BYTES)

    @property
    def num_bytes(self) -> int:
        """Size of the whole inbox."""
        last = self.region(Protocol.FLAGS)
        return last.offset + last.num_bytes

    def region(self, protocol: Protocol) -> Region:
        """Lines carry each byte twice; flags need words beside the data."""
        data_bytes = _round_up(self.max_bytes)
        line_bytes, sentinel_bytes = self._areas(2 * data_bytes), self._areas(data_bytes)
        if protocol is Protocol.LINES:
            return Region(0, line_bytes, 2 * data_bytes, 0)
        if protocol is Protocol.SENTINEL:
            return Region(line_bytes, sentinel_bytes, data_bytes, EMPTY_BYTE)
        flag_bytes = self._areas(self.max_chunks * FLAG_STRIDE)
        return Region(line_bytes + sentinel_bytes, self._areas(data_bytes) + flag_bytes, data_bytes, 0)

    def _areas(self, area_bytes: int) -> int:
        return NUM_SLOTS * self.world_size * area_bytes


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // 256) * 256
