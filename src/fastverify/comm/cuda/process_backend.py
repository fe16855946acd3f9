"""Our GPU all-reduce behind the contract: one rank per process, over the peers' GPU memory or over host memory.

It checks tensors and hands them to a CudaRank; where the fused kernel cannot hold a row it sums and norms separately,
and where memory is not aligned it works on a copy, both of which `fallbacks` counts. It runs on torch's current stream
and inside CUDA graphs, once one eager call of the same shape has run. backend.py opens it.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import torch

from fastverify.comm.backend import Support
from fastverify.comm.cuda.kernels import DTYPE_NUMBERS
from fastverify.comm.cuda.launch import Protocol as LineProtocol
from fastverify.comm.cuda.watchdog import WATCHDOG, Watch, Watchdog
from fastverify.comm.dtypes import find_sum_support
from fastverify.comm.rmsnorm import add_residual_rms_norm_
from fastverify.errors import FastverifyError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    from fastverify.comm.cuda.probe import ProbeResult
    from fastverify.comm.cuda.rank import CudaRank
    from fastverify.comm.group import Group

logger = logging.getLogger(__name__)

_ALIGNMENT = 16
_NOT_PLAIN = f"memory that is not contiguous or not aligned to {_ALIGNMENT} bytes"


class SharedMemory(Protocol):
    """Memory of all ranks (ipc.py, host_memory.py), closed when nothing runs any more."""

    def close(self) -> None:
        """Let go of it; calling twice is harmless."""
        ...


class CudaBackend:
    """Collectives of one rank. `fabric` is "push" or "host"; `rank` takes a launch per call, for whoever measures."""

    def __init__(
        self,
        name: str,
        group: Group,
        fabric: str,
        rank: CudaRank,
        memory: SharedMemory,
        watch: Watch,
        probed: ProbeResult | None = None,
        watchdog: Watchdog = WATCHDOG,
    ) -> None:
        self.name = name
        self.fabric = fabric
        self.rank = rank
        self.probed = probed
        self.fallbacks: Counter[str] = Counter()
        self._world_size = group.world_size
        self._memory = memory
        self._watch = watch
        self._watchdog = watchdog
        self._is_closed = False
        watchdog.add(watch)

    @property
    def broken_protocols(self) -> frozenset[LineProtocol]:
        """Protocols that the start-up probe saw fail: no launch may use them."""
        return self.probed.broken_protocols if self.probed else frozenset()

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Any size above zero of a 16-bit or 32-bit float; what exceeds the memory of a call goes in pieces."""
        return find_sum_support(self.name, num_elements, dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks into `x`; see the contract."""
        return self.all_reduce_out(x, x)

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Sum of `x` over ranks, written into `out` and returned; `x` is kept."""
        self._check(x)
        if not (_is_plain(x) and _is_plain(out)):
            self._count(_NOT_PLAIN)
            return out.copy_(self.rank.all_reduce(_copy(x)))
        return self.rank.all_reduce(x, out)

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """One kernel where a row fits it, else a sum, an addition and the reference norm."""
        return self.all_reduce_residual_rmsnorm_out(x, residual, weight, eps, x)

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """As `all_reduce_residual_rmsnorm`, the norm written into `out` and returned."""
        self._check(x)
        hidden_size = x.shape[-1]
        if residual.shape != x.shape or weight.shape != (hidden_size,):
            raise ShapeError(
                f"x and residual must have one shape [..., hidden] and weight [hidden], got {tuple(x.shape)}, "
                f"{tuple(residual.shape)} and {tuple(weight.shape)}."
            )
        if not x.dtype == residual.dtype == weight.dtype:
            return self._norm_separately("mixed dtypes", x, residual, weight, eps, out)
        try:
            self._fuse(x, residual, weight, eps, out)
        except ShapeError as error:
            # The rank refuses a row before it launches anything, and alike on every rank.
            return self._norm_separately(str(error), x, residual, weight, eps, out)
        return out

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` in rank order; any dtype."""
        self._check_open()
        gathered = x.new_empty((self._world_size, *x.shape))
        if x.numel() == 0:
            return gathered
        if not _is_plain(x):
            self._count(_NOT_PLAIN)
            x = _copy(x)
        return self.rank.all_gather(x, gathered)

    def check(self) -> None:
        """Wait for what the GPU still does. Raises CommTimeoutError where one of the calls so far has failed."""
        self._check_open()
        torch.cuda.synchronize(self.rank.device)
        self._watchdog.look_at(self._watch)
        self._watch.check()

    def close(self) -> None:
        """Wait for this rank's kernels, then let go of the memory. Calling twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._watch.failure:
            self.rank.abort()
        try:
            # The watchdog still looks: should a peer die now, kernels that wait for it leave.
            torch.cuda.synchronize(self.rank.device)
        except RuntimeError as error:
            logger.warning("the GPU of a closed all-reduce reports an error of its own: %s", error)
        self._watchdog.remove(self._watch)
        with torch.cuda.device(self.rank.device):
            self._memory.close()

    def _fuse(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> None:
        """The fused kernel, on copies where this rank's memory is not plain: the others' may be."""
        rows = (-1, x.shape[-1])
        if all(map(_is_plain, (x, residual, weight, out))):
            self.rank.all_reduce_residual_rmsnorm(x.view(rows), residual.view(rows), weight, eps, out.view(rows))
            return
        summed = _copy(residual)
        normed = self.rank.all_reduce_residual_rmsnorm(_copy(x).view(rows), summed.view(rows), _copy(weight), eps)
        residual.copy_(summed)
        out.copy_(normed.view(x.shape))
        self._count(_NOT_PLAIN)

    def _norm_separately(
        self,
        reason: str,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
    ) -> torch.Tensor:
        self._count(reason)
        return out.copy_(add_residual_rms_norm_(self.all_reduce_out(x, out), residual, weight, eps))

    def _count(self, reason: str) -> None:
        """Visible: counted, and logged the first time."""
        self.fallbacks[reason] += 1
        if self.fallbacks[reason] == 1:
            logger.info("%s falls back to separate kernels or a copy: %s", self.name, reason)

    def _check(self, x: torch.Tensor) -> None:
        self._check_open()
        if x.dtype not in DTYPE_NUMBERS or x.numel() == 0:
            raise UnsupportedError(f"{self.can_run(x.numel(), x.dtype).reason}.")

    def _check_open(self) -> None:
        if self._is_closed:
            raise FastverifyError(f"the all-reduce {self.name} is closed. Open a new communicator.")
        self._watch.check()


def _is_plain(x: torch.Tensor) -> bool:
    """Whether kernels can take the memory as it is."""
    return x.data_ptr() % _ALIGNMENT == 0 and x.is_contiguous()


def _copy(x: torch.Tensor) -> torch.Tensor:
    """The same values in plain memory."""
    return x.clone(memory_format=torch.contiguous_format)
