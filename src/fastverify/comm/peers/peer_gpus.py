"""What another library's all-reduce needs from the GPUs of a group: one per rank, in reach, atomics, architecture.

It answers with `Support`, one sentence each, from what this process can ask its driver. A GPU that it does not see gets
the benefit of the doubt, except for atomics, which nothing later would show to be missing. `FACTS` is the one place
that asks: tests put other facts there.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.group import Group


class GpuFacts(Protocol):
    """The questions to torch and the driver. GPUs are numbered as this process sees them."""

    def is_available(self) -> bool:
        """Whether torch sees any GPU."""
        ...

    def uuids(self) -> list[str]:
        """UUIDs of the GPUs that this process sees, by number."""
        ...

    def capability(self, gpu: int) -> tuple[int, int]:
        """SM version."""
        ...

    def can_access(self, gpu: int, peer: int) -> bool:
        """Whether one GPU reaches the other's memory, by the driver's word."""
        ...

    def has_native_atomics(self, gpu: int, peer: int) -> bool | None:
        """Whether atomics on the other's memory are atomic, as they are over NVLink. None: cannot be asked."""
        ...

    def has_multicast(self, gpu: int) -> bool:
        """Whether memory can be written to all GPUs at once, and the environment has not turned that off."""
        ...


class DriverFacts:
    """The real ones."""

    def is_available(self) -> bool:
        """See GpuFacts."""
        return torch.cuda.is_available()

    def uuids(self) -> list[str]:
        """See GpuFacts."""
        return [str(torch.cuda.get_device_properties(gpu).uuid) for gpu in range(torch.cuda.device_count())]

    def capability(self, gpu: int) -> tuple[int, int]:
        """See GpuFacts."""
        return torch.cuda.get_device_capability(gpu)

    def can_access(self, gpu: int, peer: int) -> bool:
        """See GpuFacts."""
        return torch.cuda.can_device_access_peer(gpu, peer)

    def has_native_atomics(self, gpu: int, peer: int) -> bool | None:
        """See GpuFacts."""
        try:
            from cuda.bindings import runtime
        except ImportError:
            return None
        attribute = runtime.cudaDeviceP2PAttr.cudaDevP2PAttrNativeAtomicSupported
        status, *values = _both(runtime.cudaDeviceGetP2PAttribute, attribute, gpu, peer)
        return None if status else all(values)

    def has_multicast(self, gpu: int) -> bool:
        """See GpuFacts."""
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _SymmetricMemory

        return bool(_SymmetricMemory.has_multicast_support(DeviceType.CUDA, gpu))


FACTS: GpuFacts = DriverFacts()


def check_own_gpus(group: Group, library: str) -> Support:
    """Two or more ranks, each with a GPU of its own."""
    if group.device.type != "cuda":
        return Support(ok=False, reason=f"{library} needs a GPU, this rank's tensors live on {group.device}")
    if not FACTS.is_available():
        return Support(ok=False, reason=f"{library} needs a GPU, torch sees none here")
    if group.world_size < 2:
        return Support(ok=False, reason=f"{library} needs 2 or more ranks, got {group.world_size}")
    sharing = [rank for rank, gpu in enumerate(group.gpus) if group.gpus.count(gpu) > 1]
    if sharing:
        return Support(ok=False, reason=f"{library} needs a GPU per rank, ranks {sharing} share one")
    return SUPPORTED


def check_peer_access(group: Group, library: str) -> Support:
    """Every pair of the group's GPUs, as far as visible, reaches each other's memory."""
    for rank, gpu, peer_rank, peer in _visible_pairs(group):
        if not FACTS.can_access(gpu, peer):
            reason = (
                f"{library} needs GPUs that reach each other's memory, those of ranks {rank} and {peer_rank} do not"
            )
            return Support(ok=False, reason=reason)
    return SUPPORTED


def check_native_atomics(group: Group, library: str) -> Support:
    """Every pair of the group's GPUs keeps remote atomics atomic; over PCIe they are not, and signals get lost."""
    hidden = sorted(set(group.gpus) - set(FACTS.uuids()))
    if hidden:
        reason = f"{library} signals by remote atomics, and this process does not see the GPU(s) {', '.join(hidden)}"
        return Support(ok=False, reason=reason)
    for rank, gpu, peer_rank, peer in _visible_pairs(group):
        answer = FACTS.has_native_atomics(gpu, peer)
        if answer is None:
            reason = (
                f"{library} signals by remote atomics, and without cuda-bindings nobody knows whether they hold here"
            )
            return Support(ok=False, reason=reason)
        if not answer:
            reason = (
                f"{library} signals by remote atomics, which are lost between the GPUs of ranks {rank} and "
                f"{peer_rank}: no NVLink connects them"
            )
            return Support(ok=False, reason=reason)
    return SUPPORTED


def check_capability(group: Group, library: str, majors: tuple[int, ...]) -> Support:
    """This rank's GPU is of one of the architectures that the library was written for."""
    gpu = torch.cuda.current_device() if group.device.index is None else group.device.index
    major, minor = FACTS.capability(gpu)
    if major not in majors:
        wanted = ", ".join(f"SM{major}0" for major in majors)
        return Support(ok=False, reason=f"{library} is compiled for {wanted}, this GPU is SM{major}{minor}")
    return SUPPORTED


def first_refusal(*checks: Support) -> Support:
    """The first check that failed, or SUPPORTED."""
    return next((check for check in checks if not check.ok), SUPPORTED)


def _visible_pairs(group: Group) -> list[tuple[int, int, int, int]]:
    """`(rank, gpu, peer rank, peer gpu)` of every two ranks whose GPUs this process sees."""
    uuids = FACTS.uuids()
    seen = [(rank, uuids.index(gpu)) for rank, gpu in enumerate(group.gpus) if gpu in uuids]
    return [
        (rank, gpu, peer_rank, peer)
        for position, (rank, gpu) in enumerate(seen)
        for peer_rank, peer in seen[position + 1 :]
        if gpu != peer
    ]


def _both(query: Any, attribute: Any, gpu: int, peer: int) -> tuple[bool, bool, bool]:
    """`(failed, answer, answer the other way round)`."""
    (status, answer), (status_back, answer_back) = query(attribute, gpu, peer), query(attribute, peer, gpu)
    return bool(int(status) or int(status_back)), bool(answer), bool(answer_back)
