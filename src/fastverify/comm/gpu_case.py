"""One operation on messages of one size: inputs of every rank, made from seeds, and what must come out of it.

Answers are judged against float64 within the derived bounds of accuracy.py. A chain of dependent calls, as a timed
graph holds it, is judged by what it must end in. It does not know who answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from fastverify.comm.gpu_table import Accuracy, Op
from fastverify.comm.gpu_timing import chain_factor
from fastverify.comm.group import Group

EPS = 1e-6


@dataclass(frozen=True)
class Tensors:
    """What a call reads and writes: x, and for a fused norm residual and weight."""

    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor


Start = Callable[[Tensors], torch.Tensor]


@dataclass(frozen=True)
class Candidate:
    """One way to run an operation: whose, with which launch, and how to start it on the current stream."""

    backend: str
    launch: Launch | None
    start: Start
    separate_norm: bool = False


class Case:
    """Tensors of this rank and the exact answers. `row_elements` is the hidden size of a fused norm, else 0."""

    def __init__(self, op: Op, num_bytes: int, row_elements: int, group: Group, dtype: torch.dtype) -> None:
        self.op = op
        self.num_bytes = num_bytes
        self.row_elements = row_elements
        self.dtype = dtype
        self._world_size = world_size = group.world_size
        num_elements = num_bytes // dtype.itemsize
        row_elements = row_elements or num_elements
        shape = (num_elements // row_elements, row_elements)

        def make(seed: int) -> torch.Tensor:
            # On the CPU: two kinds of GPU make different numbers of one seed.
            return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(group.device, dtype)

        # Seeds 0 to world_size - 1 are the ranks' inputs; residual and weight are the same on every rank.
        self._inputs = [make(seed) for seed in range(world_size)]
        self._source, self._residual_source = self._inputs[group.rank], make(world_size)
        self.tensors = Tensors(self._source.clone(), self._residual_source.clone(), make(world_size + 1)[0].clone())
        terms = self._inputs if op != "all_reduce_residual_rmsnorm" else [self._residual_source, *self._inputs]
        self._exact = add_exactly(terms)
        self._bound = sum_error_bound(self._inputs, dtype)
        if op == "all_reduce_residual_rmsnorm":
            self._bound = residual_error_bound(self._inputs, self._residual_source)
        hops = (world_size - 1) * UNIT_ROUNDOFF[dtype]
        self._rounded_bound = self._bound + hops * add_exactly([x.abs() for x in self._inputs])

    def reset(self) -> None:
        """Inputs as before the first call, written on the current stream."""
        self.tensors.x.copy_(self._source)
        if self.op == "all_reduce_residual_rmsnorm":
            self.tensors.residual.copy_(self._residual_source)

    def judge(self, answer: torch.Tensor) -> Accuracy:
        """The answer of one call after `reset`."""
        if self.op == "all_gather":
            return "contract" if torch.equal(answer, torch.stack(self._inputs)) else "wrong"
        if self.op == "all_reduce":
            return self._grade(answer)
        # The norm is defined on the residual as it was rounded.
        return self._grade(self.tensors.residual) if self._is_norm(answer) else "wrong"

    def judge_chain(self, num_calls: int, first: torch.Tensor, last: torch.Tensor, accuracy: Accuracy) -> bool:
        """Whether `num_calls` dependent calls after `reset` ended in what they must.

        `first` and `last` are the answers of the first and last call, `accuracy` is how the first was judged.
        """
        if self.op == "all_gather":
            return torch.equal(last, first)
        if self.op == "all_reduce_residual_rmsnorm":
            return self._is_norm(last)
        expected = first.double() * chain_factor(num_calls, self._world_size)
        return is_within(last, expected, expected.abs() * self._chain_error(num_calls, accuracy))

    def _chain_error(self, num_calls: int, accuracy: Accuracy) -> float:
        """Relative to the end of a chain: nothing where each call multiplies by a power of two and rounds once."""
        if accuracy == "contract" and self._world_size & (self._world_size - 1) == 0:
            return 0.0
        num_roundings = 1 if accuracy == "contract" else self._world_size - 1
        return float((1 + num_roundings * UNIT_ROUNDOFF[self.dtype]) ** num_calls - 1)

    def _grade(self, answer: torch.Tensor) -> Accuracy:
        if is_within(answer, self._exact, self._bound):
            return "contract"
        return "rounded" if is_within(answer, self._exact, self._rounded_bound) else "wrong"

    def _is_norm(self, answer: torch.Tensor) -> bool:
        residual, weight = self.tensors.residual, self.tensors.weight
        return is_within(answer, norm_exactly(residual, weight, EPS), norm_error_bound(residual, weight, EPS))


def digest(answer: torch.Tensor) -> int:
    """A number that differs where the bits of two tensors do, up to chance."""
    words = answer.contiguous().view(-1).view(torch.uint8).to(torch.int64)
    places = torch.arange(1, len(words) + 1, device=words.device)
    return int((words * (places * 2_654_435_761 % 1_000_003)).sum())
