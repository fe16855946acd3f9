"""The backend that is several: each message goes to the one that the plan names for its size.

What a plan cannot know is asked here: whether the planned backend takes a message of this dtype and number of elements.
All ranks hold the same plan and ask the same questions, so they go the same way. It measures nothing. Where the plan
changes the way with the size, the last bit may change too: a fused norm adds the residual before it rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fastverify.comm.backend import AllReduceBackend, OutOfPlaceBackend, Support
from fastverify.comm.gpu.candidates import holder_of
from fastverify.comm.gpu.plan import Pick, Plan
from fastverify.comm.gpu.table import NORM
from fastverify.comm.rmsnorm import add_residual_quick_norm_
from fastverify.errors import UnsupportedError

# Arbitrary: more shapes than a server warms up; finding a backend again costs microseconds.
_MAX_SHAPES = 4096
_Key = tuple[int, torch.dtype]
_NormKey = tuple[int, int, torch.dtype]


class AutoBackend:
    """Several opened backends behind one contract; it owns them."""

    def __init__(self, backends: Mapping[str, AllReduceBackend], plan: Plan) -> None:
        self._backends = dict(backends)
        self._plan = plan
        winners = (*plan.winners("all_reduce"), *plan.winners(NORM))
        used = [name for name in dict.fromkeys(winners) if holder_of(name) in self._backends]
        self.name = f"auto({'+'.join(used or self._backends)})"
        self._sums: dict[_Key, AllReduceBackend] = {}
        self._norms: dict[_NormKey, AllReduceBackend | None] = {}
        self._gathers: dict[int, AllReduceBackend] = {}

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Whether any of them can; the reason is that of the one planned first."""
        return self._find(num_elements, dtype)[1]

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See the contract."""
        return self._sum_backend(x).all_reduce(x)

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Sum of `x` over the ranks, written into `out` and returned; `x` stays."""
        backend = self._sum_backend(x)
        if isinstance(backend, OutOfPlaceBackend):
            return backend.all_reduce_out(x, out)
        return backend.all_reduce(out.copy_(x))

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See the contract."""
        backend = self._norm_backend(x)
        if backend is None:
            return add_residual_quick_norm_(self.all_reduce(x), residual, weight, eps)
        return backend.all_reduce_residual_rmsnorm(x, residual, weight, eps)

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """As `all_reduce_residual_rmsnorm`, the norm written into `out` and returned; `x` stays."""
        backend = self._norm_backend(x)
        if backend is None:
            return add_residual_quick_norm_(self.all_reduce_out(x, out), residual, weight, eps, out)
        if isinstance(backend, OutOfPlaceBackend):
            return backend.all_reduce_residual_rmsnorm_out(x, residual, weight, eps, out)
        return out.copy_(backend.all_reduce_residual_rmsnorm(out.copy_(x), residual, weight, eps))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` in rank order."""
        backend = self._gathers.get(x.nbytes)
        if backend is None:
            _forget_when_full(self._gathers)
            backend = self._gathers[x.nbytes] = self._find_gather(x.nbytes)
        return backend.all_gather(x)

    def close(self) -> None:
        """Close them all. Calling twice is harmless."""
        for backend in self._backends.values():
            backend.close()

    def _sum_backend(self, x: torch.Tensor) -> AllReduceBackend:
        key = (x.numel(), x.dtype)
        backend = self._sums.get(key)
        if backend is None:
            backend, support = self._find(*key)
            if not support.ok:
                raise UnsupportedError(f"{support.reason}.")
            _forget_when_full(self._sums)
            self._sums[key] = backend
        return backend

    def _find(self, num_elements: int, dtype: torch.dtype) -> tuple[AllReduceBackend, Support]:
        """The first that can sum such a message, in the plan's order and then in any; else the first and its reason."""
        picks = self._plan.find("all_reduce", num_elements * dtype.itemsize)
        ordered = dict.fromkeys([*self._holders(picks), *self._backends.values()])
        supports = [(backend, backend.can_run(num_elements, dtype)) for backend in ordered]
        return next((found for found in supports if found[1].ok), supports[0])

    def _norm_backend(self, x: torch.Tensor) -> AllReduceBackend | None:
        """Whose fused operation is planned, or None for the planned sum and then the norm."""
        key = (x.numel(), x.shape[-1], x.dtype)
        if key not in self._norms:
            _forget_when_full(self._norms)
            self._norms[key] = self._find_norm(x)
        return self._norms[key]

    def _find_norm(self, x: torch.Tensor) -> AllReduceBackend | None:
        for pick in self._plan.find(NORM, x.nbytes, x.shape[-1] * x.element_size()):
            backend = self._backends.get(holder_of(pick.backend))
            if pick.separate_norm:
                return None
            if backend is not None and backend.can_run(x.numel(), x.dtype).ok:
                return backend
        return self._sum_backend(x)

    def _find_gather(self, num_bytes: int) -> AllReduceBackend:
        picks = self._plan.find("all_gather", num_bytes)
        return next(iter([*self._holders(picks), *self._backends.values()]))

    def _holders(self, picks: tuple[Pick, ...]) -> list[AllReduceBackend]:
        holders = (holder_of(pick.backend) for pick in picks)
        return [self._backends[holder] for holder in holders if holder in self._backends]


def _forget_when_full(known: dict[Any, Any]) -> None:
    """A server that sees a new length at every prefill must not grow for ever."""
    if len(known) >= _MAX_SHAPES:
        known.clear()
