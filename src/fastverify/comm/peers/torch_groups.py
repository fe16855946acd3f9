"""A gloo group of torch.distributed for libraries that take nothing else.

vLLM's and FlashInfer's classes ask torch.distributed for ranks and exchange handles over it, which works only with
groups of its registry, and those need a default group. Where the process has none, this makes one and leaves it for the
process's life, since other backends may use it too. Where it has one of the same ranks, it adds a group to it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.group import Group
from fastverify.comm.peers.library_env import variables_defaulted
from fastverify.comm.peers.peer_store import meet_in_store
from fastverify.errors import UnsupportedError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def check_default_group(group: Group, library: str) -> Support:
    """Whether torch.distributed is free in this process or already connects the same ranks."""
    if not dist.is_initialized():
        return SUPPORTED
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) == (group.rank, group.world_size):
        return SUPPORTED
    reason = (
        f"{library} works on torch.distributed's default group, which makes this process rank {rank} of {world_size} "
        f"instead of rank {group.rank} of {group.world_size}"
    )
    return Support(ok=False, reason=reason)


def open_torch_group(group: Group, library: str) -> ProcessGroup:
    """A gloo group of these ranks in torch.distributed's registry. Every rank calls this together."""
    support = check_default_group(group, library)
    if not support.ok:
        raise UnsupportedError(f"{support.reason}.")
    store, _ = meet_in_store(group, "torch-group")
    timeout = timedelta(seconds=group.timeout_s)
    # All ranks are on this host, and its name may resolve to nothing.
    with variables_defaulted({"GLOO_SOCKET_IFNAME": "lo"}):
        if dist.is_initialized():
            added: ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
            return added
        dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size, timeout=timeout)
    assert dist.group.WORLD is not None
    return dist.group.WORLD
