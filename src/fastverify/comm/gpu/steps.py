"""One call of a backend as a server makes it, and the memory that it works in: what chooser and benchmark both time.

A *way* is an operation with a launch or a style: in place or out of place. Servers may do either, so a library is timed
in both and the faster one counts; our kernels cost the same in both and are timed out of place.
Warm: each call works on what the one before it left. Cold: each call of a graph has tensors of its own.
A norm beside a sum keeps the contract's roundings where we would serve it; a library gets torch's quickest one, which
rounds once less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastverify.comm.cuda.launch import Launch
from fastverify.comm.gpu.launches import OWN_BACKENDS
from fastverify.comm.gpu.table import NORM, Op
from fastverify.comm.rmsnorm import add_residual_quick_norm_, add_residual_rounded_once_norm_

EPS = 1e-6
AUTO = "auto"
# Backends whose sum + residual + norm is one kernel; for all others the norm comes after the sum.
FUSED_BACKENDS = (*OWN_BACKENDS, "flashinfer", AUTO)
_ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class Way:
    """How to run an operation. `launch` is None where the backend decides; `separate_norm`: a sum, then the norm.

    `rounds_once`: such a norm may leave out a rounding of the contract, as a rival's does.
    """

    backend: str
    op: Op
    launch: Launch | None = None
    separate_norm: bool = False
    out_of_place: bool = True
    rounds_once: bool = False


@dataclass
class Slot:
    """The tensors of one call: input, where a result may go beside it, and the residual."""

    x: torch.Tensor
    spare: torch.Tensor
    residual: torch.Tensor

    def other(self, x: torch.Tensor) -> torch.Tensor:
        """The one of the two that `x` is not."""
        return self.spare if x is self.x else self.x


Step = Callable[[torch.Tensor, Slot], torch.Tensor]


def has_fused(name: str) -> bool:
    """Whether the backend of this name norms in the kernel that sums."""
    return name in FUSED_BACKENDS


def find_styles(backend: Any, name: str, op: Op, *, separate_norm: bool = False) -> tuple[bool, ...]:
    """Values of `out_of_place` worth timing."""
    is_fused = op == NORM and has_fused(name) and not separate_norm
    if op == "all_gather" or not hasattr(backend, "all_reduce_residual_rmsnorm_out" if is_fused else "all_reduce_out"):
        return (False,)
    return (True,) if name in OWN_BACKENDS else (False, True)


def make_step(backend: Any, way: Way, weight: torch.Tensor) -> Step:
    """One call, as a model makes it."""
    if way.op == "all_gather":
        return lambda x, slot: backend.all_gather(x)
    if way.op == NORM and has_fused(way.backend) and not way.separate_norm:
        return _fused_step(backend, way, weight)
    reduce = _sum_step(backend, way)
    if way.op != NORM:
        return reduce
    add_norm = add_residual_rounded_once_norm_ if way.rounds_once else add_residual_quick_norm_
    return lambda x, slot: add_norm(reduce(x, slot), slot.residual, weight, EPS)


def _sum_step(backend: Any, way: Way) -> Step:
    if way.launch is not None:
        return lambda x, slot: backend.rank.all_reduce(x, slot.other(x), way.launch)
    if way.out_of_place:
        return lambda x, slot: backend.all_reduce_out(x, slot.other(x))
    return lambda x, slot: backend.all_reduce(x)


def _fused_step(backend: Any, way: Way, weight: torch.Tensor) -> Step:
    if way.launch is not None:
        fuse = backend.rank.all_reduce_residual_rmsnorm
        return lambda x, slot: fuse(x, slot.residual, weight, EPS, slot.other(x), way.launch)
    if way.out_of_place:
        fuse_out = backend.all_reduce_residual_rmsnorm_out
        return lambda x, slot: fuse_out(x, slot.residual, weight, EPS, slot.other(x))
    return lambda x, slot: backend.all_reduce_residual_rmsnorm(x, slot.residual, weight, EPS)


class SlotPool:
    """The slots of one size, which everything timed at it shares: each writes its inputs anew before it is timed."""

    def __init__(self, like: torch.Tensor, num_slots: int) -> None:
        self._stores = [_Store(like, num_slots) for _ in range(3)]
        self.slots = [Slot(*tensors) for tensors in zip(*(store.tensors for store in self._stores), strict=True)]

    def fill(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """Enqueue writing the inputs of every slot."""
        self._stores[0].fill(x)
        self._stores[2].fill(residual)


class _Store:
    """Equal tensors that one kernel can fill."""

    def __init__(self, like: torch.Tensor, num_slots: int) -> None:
        unit = _ALIGNMENT_BYTES // like.element_size()
        padded = -(-like.numel() // unit) * unit
        self._used = like.new_zeros((num_slots, padded))[:, : like.numel()]
        self.tensors = [row.view(like.shape) for row in self._used]

    def fill(self, source: torch.Tensor) -> None:
        self._used.copy_(source.view(-1))


class Operation:
    """Calls of one way: `rewind`, then one call per slot, or a chain where there is one slot. Gathers do not chain.

    Only the CPU's count is rewound; `SlotPool.fill` writes the inputs.
    """

    def __init__(self, step: Step, pool: SlotPool, op: Op) -> None:
        self._step = step
        self.pool = pool
        self.op = op
        self.rewind()

    def rewind(self) -> None:
        """The next call is the first one."""
        self.outputs = [slot.x for slot in self.pool.slots]
        self._num_made = 0

    def call(self) -> torch.Tensor:
        """The next call; its result is also in `outputs`."""
        slots = self.pool.slots
        i = self._num_made % len(slots)
        is_first = self._num_made < len(slots) or self.op == "all_gather"
        self.outputs[i] = self._step(slots[i].x if is_first else self.outputs[i], slots[i])
        self._num_made += 1
        return self.outputs[i]
