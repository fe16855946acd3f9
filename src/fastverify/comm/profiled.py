"""A backend whose calls are visible in a torch profile as spans `fastverify::<operation>`.

Put around a backend while a profiler records, so that nothing is paid otherwise. Our kernels are called by address and
leave no operator behind; gloo shows its collectives itself. trace/kind_table.py reads the names.
"""

from __future__ import annotations

import torch
from torch.profiler import record_function

from fastverify.comm.backend import AllReduceBackend, Support


class ProfiledBackend:
    """The same backend, each call inside a span."""

    def __init__(self, inner: AllReduceBackend) -> None:
        self.inner = inner
        self.name = inner.name

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """As the backend."""
        return self.inner.can_run(num_elements, dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """As the backend."""
        with record_function("fastverify::all_reduce"):
            return self.inner.all_reduce(x)

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """As the backend."""
        with record_function("fastverify::all_reduce_residual_rmsnorm"):
            return self.inner.all_reduce_residual_rmsnorm(x, residual, weight, eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """As the backend."""
        with record_function("fastverify::all_gather"):
            return self.inner.all_gather(x)

    def close(self) -> None:
        """As the backend."""
        self.inner.close()
