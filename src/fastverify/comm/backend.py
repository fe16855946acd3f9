"""The contract of an all-reduce backend: what a communicator may ask of gloo, shared memory, NCCL or our own kernels.

A backend belongs to one group of ranks. Every rank calls the same methods in the same order with the same shapes and
dtypes. Reductions add in rank order (islands: each half of the ranks, then both) with float32
accumulation and round once, so all ranks hold the same bits.
Tests: tests/contracts/all_reduce_contract.py runs the same class over every backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Support:
    """Whether a backend can do something, and why not in one sentence."""

    ok: bool
    reason: str = ""


SUPPORTED = Support(ok=True)


class AllReduceBackend(Protocol):
    """One way to run the collectives of a tensor-parallel forward pass."""

    name: str

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Whether an all-reduce of this size and dtype runs here; never raises."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of `x` over the ranks, written into `x` and returned. `x` is contiguous.

        Raises: UnsupportedError where `can_run` says no; CommTimeoutError naming the rank that did not arrive.
        """
        ...

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """`residual += sum over ranks of x`; returns RMSNorm(residual) * weight, in the dtype of `x`.

        Shapes: x, residual [rows, hidden]; weight [hidden]. `residual` is updated in place, `x` may be overwritten.
        """
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, in rank order, as [world_size, *x.shape]."""
        ...

    def close(self) -> None:
        """Free what the backend holds. Calling twice is harmless."""
        ...


@runtime_checkable
class OutOfPlaceBackend(Protocol):
    """What a backend may offer beside the contract: the answer in another tensor, `x` kept, without a copy."""

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Sum of `x` over the ranks, written into `out` and returned."""
        ...

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """As `all_reduce_residual_rmsnorm`, the norm written into `out` and returned."""
        ...
