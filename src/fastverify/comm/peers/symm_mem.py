"""PyTorch symmetric memory behind the contract: one-shot, two-shot and multimem all-reduce of torch.ops.symm_mem.

Each backend has one symmetric buffer and a registered process group of its own, on the group's store, so that neither a
default group nor another user of symmetric memory is in the way. The message goes into the buffer by a copy, which
one-shot does inside its kernel; that is part of the call. bfloat16 is added in bfloat16: with two ranks that is one
rounding, with more the error grows, and one-shot ranks, each starting with its own part, may differ in the last bit.
Ranks signal by compare-and-swap on each other's memory. Over PCIe that is not atomic and signals get lost, so only GPUs
with native peer atomics are taken. Multicast objects are made for multimem only, never where it is switched off.
Sources: torch 2.11 and 2.13, torch/csrc/distributed/c10d/symm_mem. scripts/check_peers.py runs it on GPUs.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import GroupName

from fastverify.comm.backend import SUPPORTED, AllReduceBackend, Support
from fastverify.comm.group import Group
from fastverify.comm.peers import peer_gpus
from fastverify.comm.peers.library_env import DISABLE_MULTICAST, no_multicast
from fastverify.comm.peers.peer_backend import Limits, OutOfPlacePeer
from fastverify.comm.peers.peer_gpus import check_native_atomics, check_own_gpus, first_refusal
from fastverify.comm.peers.peer_store import meet_in_store
from fastverify.errors import EnvironmentMissingError
from fastverify.units import BYTES_PER_MB

MAX_BYTES = 16 * BYTES_PER_MB
# The kernels read 16 bytes at a time; a shorter tail is padded in the buffer.
_ALIGNMENT = 16
_DTYPES = (torch.float32, torch.bfloat16)
_ONE_SHOT, _TWO_SHOT, _MULTIMEM = "symm_mem_one_shot", "symm_mem_two_shot", "symm_mem_multimem"
_LIBRARY = "PyTorch symmetric memory"


def find_support(group: Group, name: str) -> Support:
    """Whether this rank could run the one-shot, two-shot or multimem all-reduce."""
    support = check_own_gpus(group, _LIBRARY)
    if not support.ok:
        return support
    return first_refusal(
        _check_allocator(group.device),
        check_native_atomics(group, _LIBRARY),
        _check_multicast(group) if name == _MULTIMEM else SUPPORTED,
    )


def create(group: Group, name: str) -> AllReduceBackend:
    """Map the ranks' buffers into each other. Raises EnvironmentMissingError where it cannot run."""
    support = find_support(group, name)
    if not support.ok:
        raise EnvironmentMissingError(f"the {name} backend cannot run: {support.reason}.")
    backends: dict[str, type[SymmMemBackend]] = {
        _ONE_SHOT: OneShotBackend,
        _TWO_SHOT: TwoShotBackend,
        _MULTIMEM: MultimemBackend,
    }
    return backends[name](group)


def _check_allocator(device: torch.device) -> Support:
    backend = c10d._SymmetricMemory.get_backend(device)
    if backend == "CUDA":
        return SUPPORTED
    return Support(ok=False, reason=f"its kernels need the allocator CUDA, TORCH_SYMMMEM chose {backend or 'none'}")


def _check_multicast(group: Group) -> Support:
    if os.environ.get(DISABLE_MULTICAST) == "1":
        return Support(ok=False, reason=f"multimem needs NVLink multicast, which {DISABLE_MULTICAST}=1 turns off")
    if not peer_gpus.FACTS.has_multicast(group.device.index or 0):
        return Support(ok=False, reason="multimem needs NVLink multicast, which this GPU or its driver does not offer")
    return SUPPORTED


class SymmMemBackend(OutOfPlacePeer):
    """One symmetric buffer; a subclass says which kernel sums it."""

    limits = Limits(_LIBRARY, _DTYPES, MAX_BYTES)
    uses_multicast = False

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        store, self._torch_name = meet_in_store(group, self.name)
        # The registry holds weak references only.
        self._torch_group = c10d.ProcessGroup(store, group.rank, group.world_size)
        self._torch_group._set_group_name(GroupName(self._torch_name))
        c10d._register_process_group(GroupName(self._torch_name), self._torch_group)
        with torch.cuda.device(self._device), nullcontext() if self.uses_multicast else no_multicast():
            self._buffer = c10d._SymmetricMemory.empty_strided_p2p((MAX_BYTES,), (1,), torch.uint8, self._device)
            self._handle = c10d._SymmetricMemory.rendezvous(self._buffer, self._torch_name)

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        staged = self._view(x)
        staged[: x.numel()].copy_(x.view(-1))
        self._reduce(staged)
        out.view(-1).copy_(staged[: x.numel()])

    def _reduce(self, staged: torch.Tensor) -> None:
        """Sum the padded message in the buffer, in place."""
        raise NotImplementedError

    def _view(self, x: torch.Tensor) -> torch.Tensor:
        """The start of the buffer as a flat message like `x`, padded to what the kernels read at a time."""
        num_bytes = -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._buffer[:num_bytes].view(x.dtype)

    def _free(self) -> None:
        torch.cuda.synchronize(self._device)
        del self._handle, self._buffer
        c10d._unregister_process_group(GroupName(self._torch_name))
        del self._torch_group


class OneShotBackend(SymmMemBackend):
    """Every rank reads all buffers and sums all of it."""

    name = _ONE_SHOT

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        staged = self._view(x)
        if _is_aligned(x) and _is_aligned(out):
            # One kernel copies in, waits, and sums into `out`, which may be `x`: a thread reads before it writes.
            flat = (x.view(-1), out.view(-1))
            torch.ops.symm_mem.one_shot_all_reduce_copy_out(staged, flat[0], "sum", self._torch_name, flat[1])
            return
        staged[: x.numel()].copy_(x.view(-1))
        total = torch.empty_like(staged)
        torch.ops.symm_mem.one_shot_all_reduce_out(staged, "sum", self._torch_name, total)
        out.view(-1).copy_(total[: x.numel()])


class TwoShotBackend(SymmMemBackend):
    """Each rank sums its part and writes it into all buffers."""

    name = _TWO_SHOT

    def _reduce(self, staged: torch.Tensor) -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(staged, "sum", self._torch_name)


class MultimemBackend(SymmMemBackend):
    """The switch sums each rank's part and writes it into all buffers."""

    name = _MULTIMEM
    uses_multicast = True

    def _reduce(self, staged: torch.Tensor) -> None:
        torch.ops.symm_mem.multimem_all_reduce_(staged, "sum", self._torch_name)


def _is_aligned(x: torch.Tensor) -> bool:
    """Whether kernels that move 16 bytes at a time may read and write it without padding."""
    return x.data_ptr() % _ALIGNMENT == 0 and x.nbytes % _ALIGNMENT == 0 and _offset(x) % _ALIGNMENT == 0


def _offset(x: torch.Tensor) -> int:
    return int(x.storage_offset()) * x.element_size()
