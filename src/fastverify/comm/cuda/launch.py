"""How many blocks of how many threads, and which protocol, for a message of a given size. Plain arithmetic, no GPU.

A table of rules belongs to one kind of memory (push.py, host.py). Its crossovers hold for the machine that the record
beside it names; nothing measures them on another machine yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from fastverify.errors import ConfigError, ShapeError

WARP = 32
MAX_THREADS = 1024


class Protocol(IntEnum):
    """How a reader knows that data is there; the number is the protocol's epoch counter (Control in inbox.cuh)."""

    LINES = 0
    SENTINEL = 1
    FLAGS = 2

    @property
    def unit_bytes(self) -> int:
        """Bytes of input that one thread moves at a time."""
        return 8 if self is Protocol.LINES else 16


@dataclass(frozen=True)
class Launch:
    """Shape of one kernel. `units`: in flight per thread. `pause_ns`: sleep between two looks at what has not come."""

    protocol: Protocol
    blocks: int
    threads: int
    units: int = 1
    pause_ns: int = 0
    cluster: int = 1

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.blocks % self.cluster:
            raise ConfigError(f"blocks must be a positive multiple of the cluster, got {self.blocks}, {self.cluster}.")
        if self.units not in (1, 2, 4):
            raise ConfigError(f"units in flight per thread must be 1, 2 or 4, got {self.units}.")
        limit = max_threads(self.units)
        if not (0 < self.threads <= limit and self.threads % WARP == 0):
            raise ConfigError(f"threads must be a multiple of {WARP} up to {limit}, got {self.threads}.")

    @property
    def batch_bytes(self) -> int:
        """Input that one block moves at a time."""
        return self.threads * self.units * self.protocol.unit_bytes


def max_threads(units: int) -> int:
    """Threads that a block may have: those with four units in flight need more registers."""
    return MAX_THREADS // 2 if units == 4 else MAX_THREADS


@dataclass(frozen=True)
class Rule:
    """`launch` serves messages of up to `max_bytes`."""

    max_bytes: int
    launch: Launch


def choose_launch(rules: tuple[Rule, ...], num_bytes: int) -> Launch:
    """The first rule that reaches, the last one for anything larger, without blocks that would have nothing to do."""
    rule = next((rule for rule in rules if num_bytes <= rule.max_bytes), rules[-1])
    return replace(rule.launch, blocks=min(rule.launch.blocks, num_batches(rule.launch, num_bytes)))


def num_batches(launch: Launch, num_bytes: int) -> int:
    """Blocks that would move the message in one go."""
    return max(1, -(-num_bytes // launch.batch_bytes))


def fused_launch(protocol: Protocol, num_rows: int, row_bytes: int, *, cluster: int, max_blocks: int) -> Launch:
    """One cluster per row, each thread one unit where a row allows it.

    Raises: ShapeError where rows do not consist of whole units or exceed what a cluster can hold.
    """
    if row_bytes % 16:
        raise ShapeError(f"a row must be a multiple of 16 bytes, got {row_bytes}. Sum and norm it separately.")
    row_units = row_bytes // protocol.unit_bytes
    for units in (1, 2, 4):
        threads = -(-row_units // (cluster * units * WARP)) * WARP
        if threads <= max_threads(units):
            blocks = cluster * min(num_rows, max(1, max_blocks // cluster))
            return Launch(protocol, blocks, threads, units, cluster=cluster)
    raise ShapeError(
        f"a row must fit a cluster of {cluster} blocks, got {row_bytes} bytes. Sum and norm it separately."
    )


def check_fits(launch: Launch, world_size: int, num_multiprocessors: int, threads_per_multiprocessor: int) -> None:
    """Ranks on one GPU wait for each other, so all their blocks must be resident at once.

    With overlapped launches the next kernel of each rank takes room too.
    Raises: ConfigError where they might not be.
    """
    blocks_per_multiprocessor = threads_per_multiprocessor // max(launch.threads, MAX_THREADS // 2)
    room = num_multiprocessors * max(1, blocks_per_multiprocessor)
    if 2 * launch.blocks * world_size > room:
        raise ConfigError(
            f"two kernels of {world_size} ranks of {launch.blocks} blocks must fit on one GPU, which holds {room} "
            f"blocks of {launch.threads} threads for certain. Use fewer blocks."
        )
