"""Inputs of every rank, made from seeds, and what must come out of them: how chooser and benchmark judge an answer.

One call on random inputs is judged against float64 within the derived bounds of accuracy.py. The chain of a timed graph
starts from small integers, whose sums no order and no rounding can change: k calls must give sum x world_size^(k-1), to
the bit wherever the world size is a power of two. It knows neither the other ranks nor who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastverify.comm.accuracy import (
    UNIT_ROUNDOFF,
    add_exactly,
    is_norm,
    is_within,
    residual_error_bound,
    sum_error_bound,
)
from fastverify.comm.gpu.launches import OWN_BACKENDS
from fastverify.comm.gpu.steps import EPS, Operation
from fastverify.comm.gpu.table import NORM, Accuracy
from fastverify.comm.gpu.timing import chain_factor, num_safe_calls

# Sums of up to eight of them, and all partial sums of a chain, are integers that bfloat16 holds exactly.
_LARGEST_INTEGER = 4


@dataclass(frozen=True)
class Inputs:
    """Every rank's tensors of one shape [rows, hidden], and weight [hidden]; the same on whichever rank makes them."""

    random: tuple[torch.Tensor, ...]
    integers: tuple[torch.Tensor, ...]
    residual: torch.Tensor
    weight: torch.Tensor

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.random)


def make_inputs(shape: tuple[int, int], world_size: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Seeds 0 to world_size - 1 are the ranks' inputs; residual and weight are the same on every rank."""

    def make(seed: int) -> torch.Tensor:
        # On the CPU: two kinds of GPU make different numbers of one seed.
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)

    random = tuple(make(seed) for seed in range(world_size))
    limit = _LARGEST_INTEGER
    return Inputs(
        random=random,
        integers=tuple((x.float() * 2).round().clamp(-limit, limit).to(dtype) for x in random),
        residual=make(world_size),
        weight=make(world_size + 1)[0].contiguous(),
    )


def count_calls(limit: int, dtype: torch.dtype, world_size: int) -> int:
    """Calls of one graph: as many as asked for, or as many as stay finite."""
    return min(limit, num_safe_calls(dtype, world_size, largest_input=_LARGEST_INTEGER))


def judge(operation: Operation, inputs: Inputs) -> Accuracy:
    """The first call's answer, from the random inputs."""
    answer, slot = operation.outputs[0], operation.pool.slots[0]
    if operation.op == "all_gather":
        return "contract" if torch.equal(answer, torch.stack(inputs.random)) else "wrong"
    if operation.op == "all_reduce":
        bound = sum_error_bound(inputs.random, answer.dtype)
        return _grade(answer, add_exactly(inputs.random), bound, inputs)
    # The norm is defined on the residual as it was rounded.
    if not is_norm(answer, slot.residual, inputs.weight, EPS):
        return "wrong"
    exact = add_exactly([inputs.residual, *inputs.random])
    return _grade(slot.residual, exact, residual_error_bound(inputs.random, inputs.residual), inputs)


def is_chain_right(operation: Operation, inputs: Inputs, num_calls: int, accuracy: Accuracy) -> bool:
    """What a graph of `num_calls` left, from the integers. `accuracy` is how often each call may round."""
    slots, outputs = operation.pool.slots, operation.outputs
    if operation.op == "all_gather":
        return all(torch.equal(output, torch.stack(inputs.integers)) for output in outputs)
    if operation.op == NORM:
        pairs = zip(slots, outputs, strict=True)
        return all(is_norm(output, slot.residual, inputs.weight, EPS) for slot, output in pairs)
    length = num_calls if len(slots) == 1 else 1
    expected = add_exactly(inputs.integers) * chain_factor(length, inputs.world_size)
    bound = expected.abs() * _chain_error(length, inputs, accuracy)
    return all(is_within(output, expected, bound) for output in outputs)


def may_be_used(accuracy: Accuracy, backend: str, world_size: int) -> bool:
    """Whether this is a right answer. Ours round once; from three ranks on, libraries may after each addition."""
    if backend in OWN_BACKENDS or world_size == 2:
        return accuracy == "contract"
    return accuracy in ("contract", "rounded")


def digest(tensors: Sequence[torch.Tensor]) -> int:
    """A number that differs where the bits of tensors do, up to chance."""
    total = 0
    for tensor in tensors:
        words = tensor.contiguous().view(-1).view(torch.uint8).to(torch.int64)
        places = torch.arange(1, len(words) + 1, device=words.device)
        total = (total * 31 + int((words * (places * 2_654_435_761 % 1_000_003)).sum())) % (1 << 62)
    return total


def _grade(answer: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor, inputs: Inputs) -> Accuracy:
    if is_within(answer, exact, bound):
        return "contract"
    # One roundoff of the sum of magnitudes for every addition.
    hops = (inputs.world_size - 1) * UNIT_ROUNDOFF[answer.dtype] * add_exactly([x.abs() for x in inputs.random])
    return "rounded" if is_within(answer, exact, bound + hops * 1.01) else "wrong"


def _chain_error(num_calls: int, inputs: Inputs, accuracy: Accuracy) -> float:
    """Relative to the end of a chain: nothing where each call multiplies by a power of two."""
    world_size = inputs.world_size
    if world_size & (world_size - 1) == 0:
        return 0.0
    num_roundings = 1 if accuracy == "contract" else world_size - 1
    return float((1 + num_roundings * UNIT_ROUNDOFF[inputs.residual.dtype]) ** num_calls - 1)
