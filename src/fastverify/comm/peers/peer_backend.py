"""What the adapters of other libraries share: limits with reasons, checks of tensors, norm and gather around a sum.

A subclass says what it can sum and sums it into another tensor or in place. Only a sum of two numbers has one rounding:
from three ranks on, the libraries' order of additions is their own, and what they promise is in each module. None but
NCCL can give up on a rank that does not come: `check()` is the deadline.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group
from fastverify.comm.processes import PeerProcesses
from fastverify.comm.rmsnorm import add_residual_quick_norm_
from fastverify.errors import CommTimeoutError, FastverifyError, ShapeError, UnsupportedError
from fastverify.units import format_bytes

# Arbitrary: short against any deadline, long enough to leave the core to others.
_POLL_S = 0.0002
# Arbitrary: work of our own GPU that needs nobody is done by then.
_GRACE_S = 1.0
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Limits:
    """The messages that a library sums: dtypes, largest size, and the number of bytes that sizes are multiples of."""

    library: str
    dtypes: tuple[torch.dtype, ...] = FLOATS
    max_bytes: int | None = None
    multiple: int = 1

    def check(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Whether such a message is within them, and why not."""
        if dtype not in self.dtypes:
            names = ", ".join(str(known).removeprefix("torch.") for known in self.dtypes)
            return Support(ok=False, reason=f"{self.library} sums {names}, got {dtype}")
        if num_elements < 1:
            return Support(ok=False, reason=f"an all-reduce needs 1 or more elements, got {num_elements}")
        num_bytes = num_elements * dtype.itemsize
        if self.max_bytes is not None and num_bytes > self.max_bytes:
            limit, size = format_bytes(self.max_bytes), format_bytes(num_bytes)
            return Support(ok=False, reason=f"{self.library} was set up for messages up to {limit}, got {size}")
        if num_bytes % self.multiple:
            reason = f"{self.library} takes multiples of {self.multiple} bytes, got {num_bytes}"
            return Support(ok=False, reason=reason)
        return SUPPORTED


def has_module_file(package: str, path: str) -> bool:
    """Whether an installed package has this file or folder; nothing of it is imported, which may take seconds."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / path).exists() for folder in folders or ())


class PeerBackend(ABC):
    """A backend over somebody else's all-reduce; see comm/backend.py for the contract."""

    name: str
    limits: Limits

    def __init__(self, group: Group) -> None:
        self._group = group
        self._device = group.device
        self._peers = PeerProcesses(group.process_ids)
        self._is_closed = False

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Whether the library sums a message of this size and dtype."""
        return self.limits.check(num_elements, dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks into `x`; see the contract."""
        self._check(x)
        self._sum(x, x)
        return x

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """No fused kernel, unless a subclass has one: an all-reduce, an addition and torch's norm."""
        return add_residual_quick_norm_(self.all_reduce(x), residual, weight, eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` in rank order, by way of the CPU: these libraries sum only. Not inside a capture."""
        with closing(GlooBackend(self._group)) as gloo:
            return gloo.all_gather(x.cpu()).to(x.device)

    def check(self, timeout_s: float | None = None) -> None:
        """Wait until everything on the current stream is done.

        Raises: CommTimeoutError after `timeout_s` (default: the group's), or soon after a rank's process has ended.
        These libraries' kernels wait for ever, so that the GPU stays busy until this process ends.
        """
        timeout_s = self._group.timeout_s if timeout_s is None else timeout_s
        if not self._wait(timeout_s):
            raise CommTimeoutError(
                f"{self._late(self.limits.library, timeout_s)} Its kernel keeps waiting: end this process."
            )

    def close(self) -> None:
        """Free the library's memory. Calling twice is harmless. Raises CommTimeoutError where a kernel still waits."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self.check()
                self._free()
            finally:
                self._peers.close()

    @abstractmethod
    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue the sum of `x` into `out`, which may be `x`, on torch's current stream. Both have been checked."""

    @abstractmethod
    def _free(self) -> None:
        """Let go of everything; runs once."""

    def _wait(self, timeout_s: float) -> bool:
        """Whether the current stream gets done in time; once a rank has ended, only what needs it not still does."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        deadline = time.monotonic() + timeout_s
        while not event.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                return False
            if self._peers.find_dead():
                deadline = min(deadline, time.monotonic() + _GRACE_S)
            time.sleep(_POLL_S)
        return True

    def _late(self, what: str, timeout_s: float) -> str:
        """Who let us wait, as far as one can know."""
        return (
            f"rank {self._group.rank} waited for {what} of {self._group.world_size} ranks with a limit of "
            f"{timeout_s:g} s: {self._peers.explain_failure()}."
        )

    def _check(self, x: torch.Tensor, out: torch.Tensor | None = None) -> None:
        if self._is_closed:
            raise FastverifyError(f"the {self.name} backend is closed. Create a new one on every rank.")
        support = self.can_run(x.numel(), x.dtype)
        if not support.ok:
            raise UnsupportedError(f"{support.reason}.")
        for tensor in (x,) if out is None else (x, out):
            if tensor.device != self._device or not tensor.is_contiguous():
                raise ShapeError(
                    f"tensors must be contiguous on {self._device}, got strides {tensor.stride()} on {tensor.device}."
                )
            if tensor.shape != x.shape or tensor.dtype != x.dtype:
                raise ShapeError(f"x and out must be alike, got {list(x.shape)} {x.dtype} and {list(tensor.shape)}.")


class OutOfPlacePeer(PeerBackend):
    """One whose library sums into another tensor at no extra cost; OutOfPlaceBackend of comm/backend.py."""

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Sum over ranks into `out`, of the shape and dtype of `x`, which is kept."""
        self._check(x, out)
        self._sum(x, out)
        return out

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """As `all_reduce_residual_rmsnorm`, the norm written into `out`."""
        return add_residual_quick_norm_(self.all_reduce_out(x, out), residual, weight, eps, out)
