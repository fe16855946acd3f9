"""The shm backend: collectives through shared memory between the processes of one host.

The protocol and its ordering argument are in csrc/cpu/collectives.hpp, the overview in docs/all-reduce.md. This file
only checks tensors and hands their addresses over. Regime: CPU tensors, 2 to 64 ranks, messages of any size.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch

from fastverify import env
from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.dtypes import find_sum_support
from fastverify.comm.processes import PeerProcesses
from fastverify.comm.rmsnorm import add_residual_rms_norm_
from fastverify.errors import EnvironmentMissingError, ShapeError, UnsupportedError
from fastverify.units import BYTES_PER_KB, format_bytes

if TYPE_CHECKING:
    from fastverify.comm.group import Group

# Must match Dtype in csrc/cpu/floats.hpp.
_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
SLOT_BYTES = 512 * BYTES_PER_KB
# Measured on 2 cores, 8 KB: 20 us is no faster while each rank has a core of its own, and three times slower on average
# as soon as another process wants one of them. After this long a waiting rank yields between looks.
_SPIN_S = 2e-6
# "No message is large enough" until the chooser has measured.
NEVER = 2**62


def find_support(world_size: int, slot_bytes: int = SLOT_BYTES) -> Support:
    """Whether the compiled kernel is here, runs on this processor, and finds enough shared memory."""
    try:
        from fastverify.comm import _shm
    except ImportError as error:
        return Support(ok=False, reason=f"the compiled module is missing ({error}); reinstall the package")
    wanted, available = env.read("FASTVERIFY_SIMD"), _shm.list_simd()
    if wanted != "auto" and wanted not in available:
        return Support(ok=False, reason=f"FASTVERIFY_SIMD is {wanted!r}, this processor runs auto, {available}")
    return _find_memory(2 * slot_bytes * world_size)


def _find_memory(num_bytes: int) -> Support:
    try:
        free_bytes = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return Support(ok=False, reason=f"there is no /dev/shm ({error})")
    if free_bytes < num_bytes:
        reason = f"/dev/shm has {format_bytes(free_bytes)} free and {format_bytes(num_bytes)} are needed"
        return Support(ok=False, reason=f"{reason}; in a container, raise --shm-size")
    return SUPPORTED


class ShmBackend:
    """Collectives through shared memory. Creating it is itself a collective call."""

    name = "shm"

    def __init__(self, group: Group, *, slot_bytes: int = SLOT_BYTES, first_epoch: int = 0) -> None:
        support = find_support(group.world_size, slot_bytes)
        if not support.ok:
            raise EnvironmentMissingError(f"the shm backend cannot run: {support.reason}.")
        from fastverify.comm import _shm

        self._world_size = group.world_size
        self._slot_bytes = slot_bytes
        self._peers = PeerProcesses(group.process_ids)
        self._collectives = _shm.Collectives(
            name=f"/{group.name}",
            rank=group.rank,
            world_size=group.world_size,
            slot_bytes=slot_bytes,
            timeout_s=group.timeout_s,
            spin_s=_SPIN_S,
            simd=env.read("FASTVERIFY_SIMD"),
            find_dead=self._find_dead_mask,
            first_epoch=first_epoch,
        )
        self.simd: str = self._collectives.simd
        self.can_stream: bool = self._collectives.can_stream

    def set_thresholds(self, *, two_shot_min_bytes: int = NEVER, stream_min_bytes: int = NEVER) -> None:
        """From which size on to sum in two rounds, and to write past the caches.

        Every rank must change `two_shot_min_bytes` at the same call. A vector set without such stores ignores
        `stream_min_bytes`.
        """
        self._collectives.set_thresholds(two_shot_min_bytes, stream_min_bytes)

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Any size above zero of a 16-bit or 32-bit float."""
        return find_sum_support(self.name, num_elements, dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks into `x`; see the contract."""
        self._collectives.all_reduce(_address(x), x.numel(), self._dtype_code(x))
        return x

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """One pass over the rows: sum, residual and norm while a row is in the first-level cache."""
        hidden_size = x.shape[-1]
        if residual.shape != x.shape or weight.shape != (hidden_size,):
            raise ShapeError(
                f"x and residual must have one shape [..., hidden] and weight [hidden], got {tuple(x.shape)}, "
                f"{tuple(residual.shape)} and {tuple(weight.shape)}."
            )
        if residual.dtype != x.dtype or weight.dtype != x.dtype:
            raise UnsupportedError(
                f"the fused kernel needs one dtype for x, residual and weight, got {x.dtype}, {residual.dtype} and "
                f"{weight.dtype}. Convert them or create the communicator with fuse_rmsnorm=False."
            )
        code = self._dtype_code(x)
        if hidden_size * x.itemsize > self._slot_bytes:
            return add_residual_rms_norm_(self.all_reduce(x), residual, weight, eps)
        rows = x.numel() // hidden_size
        self._collectives.all_reduce_residual_rmsnorm(
            _address(x), _address(residual), _address(weight), rows, hidden_size, eps, code
        )
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` in rank order; any dtype."""
        gathered = x.new_empty((self._world_size, *x.shape))
        self._collectives.all_gather(_address(x), gathered.data_ptr(), x.nbytes)
        return gathered

    def close(self) -> None:
        """Unmap the memory; ranks that still wait for this one get an error."""
        self._collectives.close()
        self._peers.close()

    def _dtype_code(self, x: torch.Tensor) -> int:
        code = _DTYPE_CODES.get(x.dtype)
        if code is None or x.numel() == 0:
            raise UnsupportedError(f"{self.can_run(x.numel(), x.dtype).reason}.")
        return code

    def _find_dead_mask(self) -> int:
        return sum(1 << rank for rank in self._peers.find_dead())


def _address(x: torch.Tensor) -> int:
    """Where the elements lie. Raises ShapeError for a tensor that is not one block of CPU memory."""
    if not x.is_contiguous() or x.is_cuda:
        raise ShapeError(
            f"the shm backend needs contiguous CPU tensors, got shape {tuple(x.shape)}, stride {x.stride()} on "
            f"{x.device}. Call .contiguous()."
        )
    return x.data_ptr()
