"""Which part of each full tensor a rank holds, and where that part lies in its own parameters.

Any world size works: what does not divide is padded with zero rows, columns or heads, which add nothing to a sum.
Key/value heads are repeated on neighbouring ranks when there are fewer of them than ranks and they divide evenly.
It knows shapes only: no files (weights.py) and no arithmetic (parallel.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Slot:
    """One tensor of a checkpoint and the place of this rank's part of it.

    The file holds `full_shape`; this rank takes `start:stop` along `dim` (all of it when `dim` is None) and stores it
    in `destination`, a view of one of its parameters. An empty range leaves padding that stays zero.
    """

    name: str
    destination: torch.Tensor
    full_shape: tuple[int, ...]
    dim: int | None = None
    start: int = 0
    stop: int = 0


Slots = Iterator[Slot]


def whole(name: str, destination: torch.Tensor) -> Slot:
    """A tensor that every rank holds in full."""
    return Slot(name, destination, tuple(destination.shape))


def part(name: str, parameter: torch.Tensor, dim: int, span: Span, full_size: int, offset: int = 0) -> Slot:
    """A tensor cut along `dim`; its part starts at `offset` of `parameter`."""
    shape = list(parameter.shape)
    shape[dim] = full_size
    destination = parameter.detach().narrow(dim, offset, span.size)
    return Slot(name, destination, tuple(shape), dim, span.start, span.stop)


@dataclass(frozen=True)
class Span:
    """Rows `start:stop` of a full tensor."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of rows, 0 on a rank that holds only padding."""
        return self.stop - self.start

    def scaled(self, factor: int) -> Span:
        """The same span when every row becomes `factor` rows."""
        return Span(self.start * factor, self.stop * factor)


def local_size(full_size: int, world_size: int) -> int:
    """Rows that each rank allocates: the last ranks may hold some padding."""
    return -(-full_size // world_size)


def local_span(full_size: int, rank: int, world_size: int) -> Span:
    """The real rows of `rank`, without padding."""
    size = local_size(full_size, world_size)
    return Span(min(rank * size, full_size), min((rank + 1) * size, full_size))


@dataclass(frozen=True)
class HeadShard:
    """Heads of one rank. `num_heads` and `num_kv_heads` are allocated; the spans are the real ones among all."""

    num_heads: int
    num_kv_heads: int
    heads: Span
    kv_heads: Span


def shard_heads(num_heads: int, num_kv_heads: int, rank: int, world_size: int) -> HeadShard:
    """Heads of `rank`, each query head beside the key/value head that it reads.

    10 query and 2 kv heads give 5 and 1 on two ranks; on four ranks every kv head is on two of them, with 3 and 2 + 1
    padded query heads. 9 and 3 heads on two ranks give 6 and 2, and 3 + 3 padded and 1 + 1 padded.
    """
    group = num_heads // num_kv_heads
    if num_kv_heads < world_size and world_size % num_kv_heads == 0:
        copies = world_size // num_kv_heads
        kv_head, place = divmod(rank, copies)
        inside = local_span(group, place, copies)
        heads = Span(kv_head * group + inside.start, kv_head * group + inside.stop)
        return HeadShard(local_size(group, copies), 1, heads, Span(kv_head, kv_head + 1))
    kv_heads = local_span(num_kv_heads, rank, world_size)
    local_kv_heads = local_size(num_kv_heads, world_size)
    return HeadShard(local_kv_heads * group, local_kv_heads, kv_heads.scaled(group), kv_heads)
