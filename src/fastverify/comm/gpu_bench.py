"""One case of the GPU benchmark on one rank: inputs, dependent calls, the graph that holds them, checks, samples.

Warm: each call works on what the one before it left, so calls depend on each other and the data stays in L2. Cold: each
call of a graph has tensors of its own, and before every sample a buffer larger than L2 is written over; what a backend
keeps itself (inboxes, symmetric buffers) is cold for the first calls only. A timed graph is checked too: its inputs are
small integers, whose sums no order and no rounding can change, so a chain of k calls must give sum x world_size^(k-1)
to the bit wherever the world size is a power of two.
It does not know other ranks: gpu_bench_rank.py compares bits and takes turns. Method: docs/all-reduce.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from fastverify.comm.accuracy import (
    UNIT_ROUNDOFF,
    add_exactly,
    is_within,
    norm_error_bound,
    norm_exactly,
    residual_error_bound,
    sum_error_bound,
)
from fastverify.comm.cuda.launch import Launch
from fastverify.comm.gpu_bench_rows import CaseKey, GpuBenchConfig
from fastverify.comm.gpu_timing import chain_factor, num_safe_calls

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EPS = 1e-6
# Sums of up to eight of them, and all partial sums of a chain, are integers that bfloat16 holds exactly.
_LARGEST_INTEGER = 4
_ALIGNMENT_BYTES = 256
# Backends whose sum + residual + norm is one kernel; for all others the norm is torch's own kernel after the sum.
FUSED_BACKENDS = ("push", "push_two_shot", "islands", "host", "host_two_shot", "flashinfer", "auto")
# Rounds once to the dtype, by contract and by derivation; libraries may round after every addition.
OURS = ("push", "push_two_shot", "islands", "host", "host_two_shot")


@dataclass(frozen=True)
class Inputs:
    """Every rank's tensors at one size and what they add up to, the same on whichever rank makes them."""

    random: tuple[torch.Tensor, ...]
    integers: tuple[torch.Tensor, ...]
    residual: torch.Tensor
    weight: torch.Tensor


def make_inputs(config: GpuBenchConfig, num_bytes: int, device: torch.device) -> Inputs:
    """Shapes: [rows, hidden] of every rank; weight [hidden]."""
    row_elements = config.row_elements(num_bytes)
    shape = (num_bytes // config.itemsize // row_elements, row_elements)
    dtype = DTYPES[config.dtype]

    def normal(seed: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)

    def integers(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-_LARGEST_INTEGER, _LARGEST_INTEGER + 1, shape, generator=generator).to(device, dtype)

    ranks = range(config.world_size)
    return Inputs(
        random=tuple(normal(rank) for rank in ranks),
        integers=tuple(integers(1000 + rank) for rank in ranks),
        residual=normal(2000),
        weight=normal(2001)[0].contiguous(),
    )


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


class Style(Enum):
    """Where a call puts its answer. Servers may do either, so a library is timed in the one that suits it."""

    IN_PLACE = "in place"
    OUT_OF_PLACE = "out of place"


def find_styles(backend: Any, key: CaseKey) -> tuple[Style, ...]:
    """The styles that a backend offers; ours cost the same in both."""
    name = "all_reduce_residual_rmsnorm_out" if _is_own_fused(key) else "all_reduce_out"
    if not hasattr(backend, name):
        return (Style.IN_PLACE,)
    return (Style.OUT_OF_PLACE,) if key.backend in OURS else (Style.IN_PLACE, Style.OUT_OF_PLACE)


def make_step(backend: Any, key: CaseKey, weight: torch.Tensor, style: Style, launch: Launch | None = None) -> Step:
    """One call, as a model makes it."""
    if _is_own_fused(key):
        return _fused_step(backend, weight, style, launch)
    reduce = _sum_step(backend, style, launch)
    if not key.fused:
        return reduce

    def separately(x: torch.Tensor, slot: Slot) -> torch.Tensor:
        slot.residual.add_(reduce(x, slot))
        return torch.nn.functional.rms_norm(slot.residual, list(weight.shape), weight, EPS)

    return separately


def _is_own_fused(key: CaseKey) -> bool:
    return key.fused and not key.separate and key.backend in FUSED_BACKENDS


def _sum_step(backend: Any, style: Style, launch: Launch | None) -> Step:
    if launch is not None:
        return lambda x, slot: backend.rank.all_reduce(x, slot.other(x), launch)
    if style is Style.OUT_OF_PLACE:
        return lambda x, slot: backend.all_reduce_out(x, slot.other(x))
    return lambda x, slot: backend.all_reduce(x)


def _fused_step(backend: Any, weight: torch.Tensor, style: Style, launch: Launch | None) -> Step:
    if launch is not None:
        fuse = backend.rank.all_reduce_residual_rmsnorm
        return lambda x, slot: fuse(x, slot.residual, weight, EPS, slot.other(x), launch)
    if style is Style.OUT_OF_PLACE:
        fuse_out = backend.all_reduce_residual_rmsnorm_out
        return lambda x, slot: fuse_out(x, slot.residual, weight, EPS, slot.other(x))
    return lambda x, slot: backend.all_reduce_residual_rmsnorm(x, slot.residual, weight, EPS)


class SlotPool:
    """The slots of one size, which all cases of a rank share: each writes its inputs anew before it is timed."""

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
    """Calls of one case: `rewind`, then one call per slot, or a chain where there is one slot.

    Only the CPU's count is rewound; `SlotPool.fill` writes the inputs.
    """

    def __init__(self, step: Step, pool: SlotPool) -> None:
        self._step = step
        self.pool = pool
        self.rewind()

    def rewind(self) -> None:
        """The next call is the first one."""
        self.outputs = [slot.x for slot in self.pool.slots]
        self._num_made = 0

    def call(self) -> torch.Tensor:
        """The next call; its result is also in `outputs`."""
        slots = self.pool.slots
        i = self._num_made % len(slots)
        x = slots[i].x if self._num_made < len(slots) else self.outputs[i]
        self.outputs[i] = self._step(x, slots[i])
        self._num_made += 1
        return self.outputs[i]


def graph_calls(config: GpuBenchConfig) -> int:
    """Calls of one graph: as asked for, or as many as stay finite."""
    return min(config.calls, num_safe_calls(DTYPES[config.dtype], config.world_size, largest_input=_LARGEST_INTEGER))


def check_once(key: CaseKey, slot: Slot, output: torch.Tensor, inputs: Inputs, world_size: int) -> bool:
    """A single call on the random inputs against float64, within derived bounds."""
    strict = key.backend in OURS or world_size == 2
    if not key.fused:
        bound = sum_error_bound(inputs.random, output.dtype)
        if not strict:
            bound = bound + _hop_error(inputs.random, output.dtype)
        return is_within(output, add_exactly(inputs.random), bound)
    bound = residual_error_bound(inputs.random, inputs.residual)
    if not strict:
        bound = bound + _hop_error(inputs.random, output.dtype)
    exact = add_exactly([inputs.residual, *inputs.random])
    return is_within(slot.residual, exact, bound) and _is_norm(output, slot.residual, inputs.weight)


def check_chain(key: CaseKey, operation: Operation, inputs: Inputs, world_size: int, num_calls: int) -> bool:
    """What the timed calls left, from the integers: sums to the bit, norms within the bound of one norm."""
    if key.fused:
        pairs = zip(operation.pool.slots, operation.outputs, strict=True)
        return all(_is_norm(output, slot.residual, inputs.weight) for slot, output in pairs)
    if world_size & (world_size - 1):
        return all(bool(torch.isfinite(output).all()) for output in operation.outputs)
    length = num_calls if len(operation.pool.slots) == 1 else 1
    expected = add_exactly(inputs.integers) * chain_factor(length, world_size)
    return all(torch.equal(output.double(), expected) for output in operation.outputs)


def _hop_error(terms: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """What rounding every addition to the dtype may add: one roundoff of the sum of magnitudes per addition."""
    return (len(terms) - 1) * UNIT_ROUNDOFF[dtype] * add_exactly([term.abs() for term in terms]) * 1.01


def _is_norm(output: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> bool:
    return is_within(output, norm_exactly(residual, weight, EPS), norm_error_bound(residual, weight, EPS))
