"""Where the regions of every protocol lie in a rank's memory, and how a call cuts a slot. Plain arithmetic, no GPU.

The layout is the one that sources/inbox.cuh describes: protocol, phase, slot, area. Protocols and phases never share
memory. A slot is cut anew by each call, so many ranks may send short messages or few ranks long ones.

Memory per rank of the default layouts, and the largest message of one call (larger ones go in pieces, rank.py):
    ranks   GPU memory: MB, sentinel, one-shot sentinel    host memory: MB, flags, sentinel, one-shot sentinel
    2       30.4 MB     4 MB          4 MB                 36.0 MB      4 MB   1 MB      1 MB
    4       50.4 MB     4 MB          2 MB                 18.5 MB      4 MB   1 MB      512 KB
    8       29.4 MB     2 MB          512 KB               12.2 MB      2 MB   1 MB      256 KB
Lines carry up to 256 KB everywhere, flags in GPU memory 512 KB.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from fastverify.comm.cuda.launch import ISLAND_WORLD_SIZES, LINE_BYTES, Algorithm, Launch, Protocol
from fastverify.errors import ConfigError, ShapeError

NUM_SLOTS = 2
FLAG_STRIDE = 64  # must match FLAG_STRIDE in sources/inbox.cuh
EMPTY_BYTE = 0xFF
# The smallest batch that a flag stands for: one warp with one unit of 16 bytes per thread.
_MIN_BATCH_UNITS = 32
_KB = 1024
_UNCAPPED = 1 << 40
_FLOAT32_BYTES = 4
_SMALLEST_ITEM_BYTES = 2


class Phase(IntEnum):
    """The steps of a call that have memory of their own; must match Phase in sources/call.cuh."""

    FIRST = 0
    GATHER = 1
    EXCHANGE = 2


@dataclass(frozen=True)
class Region:
    """Memory of one phase of a protocol; it starts as `fill` in every byte. `flags`: where they begin in a slot."""

    offset: int
    slot_bytes: int
    flags: int
    fill: int

    @property
    def num_bytes(self) -> int:
        """Both slots."""
        return NUM_SLOTS * self.slot_bytes


@dataclass(frozen=True)
class Layout:
    """Memory of one rank for messages of up to `max_bytes`, and less where a protocol is only used below that.

    `has_outboxes`: lines and flags are written once, into the writer's memory, instead of into every reader's.
    Sentinels are emptied by their reader, so each reader needs its own.
    """

    world_size: int
    max_bytes: int
    has_outboxes: bool = False
    max_line_bytes: int = 256 * _KB
    max_sentinel_bytes: int = _UNCAPPED
    max_flag_bytes: int = _UNCAPPED

    def __post_init__(self) -> None:
        if not 2 <= self.world_size <= 8:
            raise ConfigError(f"the CUDA all-reduce needs 2 to 8 ranks, got {self.world_size}.")
        if self.max_bytes < LINE_BYTES:
            raise ConfigError(f"an inbox must take messages of at least {LINE_BYTES} bytes, got {self.max_bytes}.")

    @property
    def num_bytes(self) -> int:
        """Size of the whole memory."""
        return sum(region.num_bytes for region in self.regions.values())

    @cached_property
    def regions(self) -> dict[tuple[Protocol, Phase], Region]:
        """What there is; a phase that no algorithm uses has no bytes."""
        regions = {}
        offset = 0
        for protocol in Protocol:
            for phase in Phase:
                data_bytes, num_batches = self._slot_needs(protocol, phase)
                flag_bytes = num_batches * FLAG_STRIDE if protocol is Protocol.FLAGS else 0
                fill = EMPTY_BYTE if protocol is Protocol.SENTINEL else 0
                region = Region(offset, data_bytes + _round_up(flag_bytes), data_bytes, fill)
                regions[protocol, phase] = region
                offset += region.num_bytes
        return regions

    def uses_outbox(self, protocol: Protocol) -> bool:
        """Whether the protocol's data is written once, for all readers."""
        return self.has_outboxes and protocol is not Protocol.SENTINEL

    def algorithms(self, protocol: Protocol) -> tuple[Algorithm, ...]:
        """What can run here."""
        has_islands = self.world_size in ISLAND_WORLD_SIZES and not self.has_outboxes
        if has_islands and protocol is not Protocol.FLAGS:
            return tuple(Algorithm)
        return Algorithm.ONE_SHOT, Algorithm.TWO_SHOT

    def largest_message(self, algorithm: Algorithm, protocol: Protocol) -> int:
        """Bytes that one call may carry; a multiple of 16."""
        caps = (self.max_line_bytes, self.max_sentinel_bytes, self.max_flag_bytes)
        limit = min(self.max_bytes, caps[protocol])
        sends_everything_to_all = algorithm is Algorithm.ONE_SHOT and not self.uses_outbox(protocol)
        if sends_everything_to_all and protocol is not Protocol.LINES:
            limit = 2 * limit // self.world_size
        return max(LINE_BYTES, limit // LINE_BYTES * LINE_BYTES)

    def pieces(self, launch: Launch, num_bytes: int, whole: int = 1) -> list[tuple[int, int]]:
        """Start and size of what each call carries, cut between multiples of `whole`.

        Raises: ShapeError where one `whole`, a row, is too large for a call.
        """
        limit = self.largest_message(launch.algorithm, launch.protocol)
        size = limit // whole * whole
        if size == 0:
            raise ShapeError(f"a row must have at most {limit} bytes here, got {whole}. Sum and norm it separately.")
        return [(start, min(size, num_bytes - start)) for start in range(0, num_bytes, size)]

    def area_bytes(
        self, algorithm: Algorithm, protocol: Protocol, phase: Phase, num_bytes: int, item_bytes: int
    ) -> int:
        """What one source rank takes of a slot in a call; 0 where the algorithm has no such phase."""
        return _round_up(self._area_units(algorithm, protocol, phase, num_bytes, item_bytes) * LINE_BYTES)

    def _area_units(
        self, algorithm: Algorithm, protocol: Protocol, phase: Phase, num_bytes: int, item_bytes: int
    ) -> int:
        num_units = -(-num_bytes // protocol.unit_bytes)
        part_units = -(-num_units // algorithm.num_parts(self.world_size))
        if phase is Phase.FIRST:
            return num_units if self.uses_outbox(protocol) else part_units
        if phase is Phase.GATHER:
            return 0 if algorithm is Algorithm.ONE_SHOT else part_units
        return part_units * _FLOAT32_BYTES // item_bytes if algorithm is Algorithm.ISLANDS else 0

    def _slot_needs(self, protocol: Protocol, phase: Phase) -> tuple[int, int]:
        """The most bytes of data, and the most batches with a flag, that any call needs."""
        data_bytes = num_batches = 0
        for algorithm in self.algorithms(protocol):
            num_bytes = self.largest_message(algorithm, protocol)
            units = self._area_units(algorithm, protocol, phase, num_bytes, _SMALLEST_ITEM_BYTES)
            num_areas = self._num_areas(algorithm, protocol, phase)
            data_bytes = max(data_bytes, num_areas * _round_up(units * LINE_BYTES))
            num_batches = max(num_batches, num_areas * -(-units // _MIN_BATCH_UNITS))
        return data_bytes, num_batches

    def _num_areas(self, algorithm: Algorithm, protocol: Protocol, phase: Phase) -> int:
        if self.uses_outbox(protocol):
            return 1
        if phase is Phase.EXCHANGE:
            return 2
        return self.world_size // 2 if algorithm is Algorithm.ISLANDS else self.world_size


def default_max_bytes(world_size: int) -> int:
    """The largest message that is worth memory: above it the links' bandwidth decides, and pieces cost little."""
    return (4096 if world_size <= 4 else 2048) * _KB


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // 256) * 256
