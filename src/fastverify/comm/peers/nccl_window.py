"""NCCL on memory that it registered symmetrically: its low-latency kernels, which need NVLink between all ranks.

One buffer is allocated by NCCL and registered as a window (torch.cuda.MemPool, `register_mem_pool(symm=True)`). A
tensor inside it is summed where it lies; any other is copied in and out, which is part of the call's time. NCCL falls
back to its ordinary kernels without a word where it cannot use the window: a profile shows `ncclSymkDevKernel` where
it does (scripts/check_peers.py looks).
Sources: torch 2.11 and 2.13, ProcessGroupNCCL::registerMemPool; NCCL src/sym_kernels.cc.
"""

from __future__ import annotations

import os

import torch
from torch._C import _distributed_c10d as c10d

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.group import Group
from fastverify.comm.peers.nccl import NcclBackend, read_nccl_versions
from fastverify.comm.peers.peer_backend import Limits
from fastverify.comm.peers.peer_gpus import check_native_atomics, first_refusal
from fastverify.units import BYTES_PER_MB

WINDOW_BYTES = 16 * BYTES_PER_MB
_FIRST_VERSION = (2, 27)
# Each of these turns off what symmetric windows rest on.
_SWITCHES = {"NCCL_WIN_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}


def find_window_support(group: Group) -> Support:
    """Version, switches and links; that NCCL itself runs has been asked before."""
    return first_refusal(_check_versions(), _check_switches(), check_native_atomics(group, "an NCCL window"))


def _check_versions() -> Support:
    if not hasattr(c10d.ProcessGroupNCCL, "register_mem_pool"):
        return Support(ok=False, reason=f"torch {torch.__version__} cannot register memory with NCCL")
    loaded, _ = read_nccl_versions()
    if loaded < _FIRST_VERSION:
        return Support(ok=False, reason=f"NCCL has symmetric windows since 2.27, got {'.'.join(map(str, loaded))}")
    return SUPPORTED


def _check_switches() -> Support:
    for name, value in _SWITCHES.items():
        if os.environ.get(name) == value:
            return Support(ok=False, reason=f"{name}={value} turns NCCL's symmetric windows off")
    return SUPPORTED


class NcclWindowBackend(NcclBackend):
    """NCCL's all-reduce on its registered window."""

    name = "nccl_window"
    limits = Limits("NCCL's window", max_bytes=WINDOW_BYTES)

    def __init__(self, group: Group) -> None:
        self._window: torch.Tensor | None = None
        super().__init__(group)
        with torch.cuda.device(self._device):
            self._pool = torch.cuda.MemPool(self._nccl.mem_allocator)
            with torch.cuda.use_mem_pool(self._pool):
                self._window = torch.zeros(WINDOW_BYTES, dtype=torch.uint8, device=self._device)
            self._nccl.register_mem_pool(self._pool, symm=True)

    def window(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor at the start of the window, which calls need not copy. All such tensors share that memory."""
        assert self._window is not None
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        return self._window[:num_bytes].view(dtype).view(shape)

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._contains(x):
            super()._sum(x, out)
            return
        staged = self.window(tuple(x.shape), x.dtype)
        staged.copy_(x)
        super()._sum(staged, staged)
        out.copy_(staged)

    def _contains(self, x: torch.Tensor) -> bool:
        """Whether `x` lies in the window; before there is one, the calls that connect the ranks need none."""
        return self._window is None or 0 <= x.data_ptr() - self._window.data_ptr() < WINDOW_BYTES

    def _free(self) -> None:
        torch.cuda.synchronize(self._device)
        self._nccl.deregister_mem_pool(self._pool)
        super()._free()
        self._window = None
        del self._pool
