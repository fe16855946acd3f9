"""Which algorithm and protocol, and how many blocks of how many threads, for a message. Plain arithmetic, no GPU.

A table of rules belongs to one kind of memory (push.py, host.py); `choose_launch` reads it. `candidate_launches` lists
what is worth measuring on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from math import log

from fastverify.errors import ConfigError, ShapeError

WARP = 32
MAX_THREADS = 1024
NARROW_BLOCK = 512  # threads; blocks up to here are compiled with more registers per thread
LINE_BYTES = 16  # must match LINE_BYTES in sources/inbox.cuh
ISLAND_WORLD_SIZES = (4, 8)
_KB = 1024


class Protocol(IntEnum):
    """How a reader knows that data is there (sources/inbox.cuh)."""

    LINES = 0
    SENTINEL = 1
    FLAGS = 2

    @property
    def unit_bytes(self) -> int:
        """Bytes of input that one thread moves at a time."""
        return 8 if self is Protocol.LINES else 16


class Algorithm(IntEnum):
    """Who sums what; each has a source file of its own."""

    ONE_SHOT = 0
    TWO_SHOT = 1
    ISLANDS = 2

    def num_parts(self, world_size: int) -> int:
        """How many ranks share the sums of a message."""
        return (1, world_size, world_size // 2)[self]


@dataclass(frozen=True)
class Launch:
    """Shape of one kernel. `units`: in flight per thread. `pause_ns`: sleep between two looks at what has not come.

    `has_scouts`: one thread per warp looks until its data is there, then all do (lines and sentinels over PCIe).
    """

    protocol: Protocol
    blocks: int
    threads: int
    units: int = 1
    pause_ns: int = 0
    cluster: int = 1
    algorithm: Algorithm = Algorithm.ONE_SHOT
    has_scouts: bool = False

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.blocks % self.cluster:
            raise ConfigError(f"blocks must be a positive multiple of the cluster, got {self.blocks}, {self.cluster}.")
        if self.units not in (1, 2, 4):
            raise ConfigError(f"units in flight per thread must be 1, 2 or 4, got {self.units}.")
        limit = max_threads(self.units)
        if not (0 < self.threads <= limit and self.threads % WARP == 0):
            raise ConfigError(f"threads must be a multiple of {WARP} up to {limit}, got {self.threads}.")
        if self.algorithm is Algorithm.ISLANDS and self.protocol is Protocol.FLAGS:
            raise ConfigError("islands use lines or sentinels, got flags.")

    @property
    def batch_bytes(self) -> int:
        """Input that one block moves at a time, of each part."""
        return self.threads * self.units * self.protocol.unit_bytes


def max_units(world_size: int) -> int:
    """Units in flight per thread that fit its registers: it holds a line from every rank for each."""
    return 4 if world_size <= 4 else 2


def max_threads(units: int) -> int:
    """Threads that a block may have: those with several units in flight need more registers."""
    return MAX_THREADS if units == 1 else NARROW_BLOCK


@dataclass(frozen=True)
class Rule:
    """`launch` serves messages of up to `max_bytes`. `row_bytes`: in fused ones, of rows of this size; 0 is any."""

    max_bytes: int
    launch: Launch
    row_bytes: int = 0


def find_rule(rules: tuple[Rule, ...], num_bytes: int) -> Launch:
    """The first rule that reaches, the last one for anything larger."""
    return next((rule for rule in rules if num_bytes <= rule.max_bytes), rules[-1]).launch


def find_fused_rule(rules: tuple[Rule, ...], num_rows: int, row_bytes: int) -> Launch:
    """Of the rules for the nearest size of a row, the first that reaches so many rows.

    What a launch costs goes by rows: a cluster takes one at a time.
    """
    nearest = nearest_row_bytes((rule.row_bytes for rule in rules), row_bytes)
    alike = tuple(rule for rule in rules if rule.row_bytes == nearest)
    return find_rule(alike, num_rows * (nearest or row_bytes))


def nearest_row_bytes(known: Iterable[int], row_bytes: int) -> int:
    """The known size of a row that is nearest by ratio; 0 where none is known but 0, which stands for any."""
    sizes = sorted({size for size in known if size})
    return min(sizes, key=lambda size: abs(log(size / row_bytes)), default=0)


def choose_launch(rules: tuple[Rule, ...], num_bytes: int, world_size: int) -> Launch:
    """What the rules say, without blocks that would have nothing to do."""
    return trim(find_rule(rules, num_bytes), num_bytes, world_size)


def trim(launch: Launch, num_bytes: int, world_size: int) -> Launch:
    """The launch without blocks that would have nothing to do."""
    return replace(launch, blocks=min(launch.blocks, num_batches(launch, num_bytes, world_size)))


def cap_blocks(rules: tuple[Rule, ...], max_blocks: int) -> tuple[Rule, ...]:
    """The rules with no launch of more blocks than that, but at least of one cluster."""
    return tuple(replace(rule, launch=_cap_launch(rule.launch, max_blocks)) for rule in rules)


def _cap_launch(launch: Launch, max_blocks: int) -> Launch:
    return replace(launch, blocks=min(launch.blocks, max(1, max_blocks // launch.cluster) * launch.cluster))


def num_batches(launch: Launch, num_bytes: int, world_size: int) -> int:
    """Blocks that would move the message, or each part of it, in one go."""
    parts = launch.algorithm.num_parts(world_size)
    return max(1, -(-num_bytes // (launch.batch_bytes * parts)))


def fused_launch(
    protocol: Protocol, num_rows: int, row_bytes: int, *, cluster: int, max_blocks: int, min_units: int = 1
) -> Launch:
    """One cluster per row, each thread `min_units` units where a row allows it.

    Raises: ShapeError where rows do not consist of whole units or exceed what a cluster can hold.
    """
    if row_bytes % 16:
        raise ShapeError(f"a row must be a multiple of 16 bytes, got {row_bytes}. Sum and norm it separately.")
    row_units = row_bytes // protocol.unit_bytes
    for units in (1, 2, 4):
        threads = -(-row_units // (cluster * units * WARP)) * WARP
        if units >= min_units and threads <= max_threads(units):
            blocks = cluster * min(num_rows, max(1, max_blocks // cluster))
            return Launch(protocol, blocks, threads, units, cluster=cluster)
    raise ShapeError(
        f"a row must fit a cluster of {cluster} blocks, got {row_bytes} bytes. Sum and norm it separately."
    )


def check_fits(launch: Launch, world_size: int, num_multiprocessors: int, blocks_per_multiprocessor: int) -> None:
    """Ranks on one GPU wait for each other, so a rank must find room beside all the others.

    With overlapped launches the next kernel of each rank takes room too. A rank that has some room proceeds block by
    block, in the order of the others.
    Raises: ConfigError where a rank might find none.
    """
    room = num_multiprocessors * blocks_per_multiprocessor
    if 2 * launch.blocks * (world_size - 1) >= room:
        raise ConfigError(
            f"two kernels of {launch.blocks} blocks of each of {world_size} ranks must fit on one GPU, which holds "
            f"{room} blocks of {launch.threads} threads. Use fewer blocks."
        )


def candidate_launches(fabric: str, world_size: int, num_bytes: int, *, fused: bool) -> tuple[Launch, ...]:
    """6 to 16 launches worth measuring, without twins, in the same order everywhere.

    Algorithms that the world size does not allow are absent. A fused launch gets the threads that its rows need when it
    is used (rank.py). Arbitrary: shapes around those that won on two H200.
    """
    if fabric not in ("push", "host"):
        raise ConfigError(f"memory is push or host, got {fabric!r}.")
    if fused:
        return tuple(_fused_shapes(fabric, num_bytes))
    shapes = _push_shapes(world_size, num_bytes) if fabric == "push" else _host_shapes(world_size, num_bytes)
    return tuple(dict.fromkeys(trim(launch, num_bytes, world_size) for launch in shapes))


def _push_shapes(world_size: int, num_bytes: int) -> list[Launch]:
    found = []
    if num_bytes <= 64 * _KB:
        found += [Launch(Protocol.LINES, *shape) for shape in ((64, 64), (32, 128), (64, 256))]
        found += [Launch(Protocol.SENTINEL, *shape) for shape in ((64, 64), (64, 128), (64, 256))]
    elif num_bytes <= 512 * _KB:
        shapes = ((256, 64), (64, 128), (128, 128), (32, 256), (64, 256), (128, 256), (64, 512))
        found += [Launch(Protocol.SENTINEL, *shape) for shape in shapes]
    else:
        wide = ((64, 512), (128, 512), (256, 256), (256, 512), (512, 256))
        found += [Launch(Protocol.SENTINEL, *shape) for shape in wide]
        found.append(Launch(Protocol.SENTINEL, 128, 512, units=2))
    return found + _parted_shapes(Algorithm.TWO_SHOT, world_size, num_bytes) + _island_shapes(world_size, num_bytes)


def _parted_shapes(algorithm: Algorithm, world_size: int, num_bytes: int) -> list[Launch]:
    lines = Launch(Protocol.LINES, 32, 128, algorithm=algorithm)
    middle = Launch(Protocol.SENTINEL, 64, 256, algorithm=algorithm)
    wide = Launch(Protocol.SENTINEL, 128, 512, algorithm=algorithm)
    if world_size == 2:
        return [middle, wide] if num_bytes >= 256 * _KB else []
    if num_bytes <= 64 * _KB:
        return [lines, replace(middle, threads=64), replace(middle, threads=128), middle]
    return [replace(middle, threads=128), middle, replace(middle, blocks=128), wide]


def _island_shapes(world_size: int, num_bytes: int) -> list[Launch]:
    return _parted_shapes(Algorithm.ISLANDS, world_size, num_bytes) if world_size in ISLAND_WORLD_SIZES else []


def _host_shapes(world_size: int, num_bytes: int) -> list[Launch]:
    shapes = _small_host_shapes() if num_bytes <= 16 * _KB else _middle_host_shapes()
    if num_bytes > 256 * _KB:
        shapes = _large_host_shapes()
    algorithms = [Algorithm.ONE_SHOT] if world_size == 2 else [Algorithm.ONE_SHOT, Algorithm.TWO_SHOT]
    return [replace(shape, algorithm=algorithm) for algorithm in algorithms for shape in shapes]


def _small_host_shapes() -> list[Launch]:
    return [
        Launch(Protocol.LINES, 64, 64, pause_ns=100),
        Launch(Protocol.LINES, 64, 128),
        Launch(Protocol.LINES, 64, 256),
        Launch(Protocol.SENTINEL, 64, 128),
        Launch(Protocol.SENTINEL, 64, 128, pause_ns=100),
        Launch(Protocol.SENTINEL, 64, 32, pause_ns=100),
        Launch(Protocol.SENTINEL, 64, 128, has_scouts=True),
    ]


def _middle_host_shapes() -> list[Launch]:
    return [
        Launch(Protocol.LINES, 64, 256, has_scouts=True),
        Launch(Protocol.SENTINEL, 64, 128, pause_ns=100),
        Launch(Protocol.SENTINEL, 32, 128, units=2),
        Launch(Protocol.SENTINEL, 64, 256, pause_ns=100),
        Launch(Protocol.SENTINEL, 128, 128, has_scouts=True),
        Launch(Protocol.FLAGS, 128, 128),
    ]


def _large_host_shapes() -> list[Launch]:
    return [
        Launch(Protocol.FLAGS, 64, 256),
        Launch(Protocol.FLAGS, 128, 256),
        Launch(Protocol.FLAGS, 64, 512),
        Launch(Protocol.FLAGS, 32, 512, units=2, pause_ns=100),
        # For what is little above the crossover.
        Launch(Protocol.SENTINEL, 32, 128, units=2),
        Launch(Protocol.SENTINEL, 64, 256, pause_ns=100),
    ]


def _fused_shapes(fabric: str, num_bytes: int) -> list[Launch]:
    if fabric == "host":
        return _fused_host_shapes()
    shapes = [(1, 64), (2, 128), (4, 64), (4, 128), (8, 64), (8, 128)]  # clusters, blocks
    if num_bytes > 224 * _KB:
        # As many rows at a time as fit the GPU: a second row of the same cluster costs a round trip.
        shapes = [(1, 128), (1, 264), (2, 128), (2, 256), (2, 384), (4, 128), (4, 256), (4, 512)]
    found = [Launch(Protocol.SENTINEL, blocks, 256, cluster=cluster) for cluster, blocks in shapes]
    if num_bytes <= 64 * _KB:
        found += [Launch(Protocol.LINES, 128, 256, cluster=cluster) for cluster in (4, 8)]
    return found


def _fused_host_shapes() -> list[Launch]:
    shapes = ((2, 64), (2, 128), (4, 64), (4, 128), (8, 64))  # clusters, blocks
    found = [Launch(Protocol.SENTINEL, blocks, 256, cluster=cluster) for cluster, blocks in shapes]
    found.append(Launch(Protocol.SENTINEL, 64, 256, pause_ns=200, cluster=4))
    found.append(Launch(Protocol.SENTINEL, 128, 256, cluster=4, has_scouts=True))
    return found
