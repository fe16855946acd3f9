"""The backend of a group of one rank: every sum is its input.

It keeps the contract, in-place updates included, so the contract tests and the benchmark cover world size 1 as well.
Models run through `SingleRankCommunicator` instead, which writes nothing in place.
"""

from __future__ import annotations

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.group import Group
from fastverify.comm.rmsnorm import add_residual_rms_norm_
from fastverify.errors import UnsupportedError


class LocalBackend:
    """Collectives among one rank."""

    name = "local"

    def __init__(self, group: Group) -> None:
        if group.world_size != 1:
            raise UnsupportedError(f"the local backend is for 1 rank, got {group.world_size}. Use gloo or shm.")

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Always."""
        return SUPPORTED

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """`residual += x`, then the reference norm."""
        return add_residual_rms_norm_(x, residual, weight, eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`x` as [1, *x.shape], in memory of its own like every other backend's answer."""
        return x.unsqueeze(0).clone()

    def close(self) -> None:
        """Nothing to free."""
