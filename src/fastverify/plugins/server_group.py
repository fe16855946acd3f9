"""One tensor-parallel group of a server, with a communicator of ours beside the server's own collectives.

It knows no server: vllm.py and sglang.py hand it the server's gloo group. Whatever our communicator cannot take goes
back to the server (`None`), and so does everything where setting up failed on any rank: all ranks then agree to stay
out, and the server runs as it would have. What happened is one line in the server's log.
"""

from __future__ import annotations

import logging
import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Store, TCPStore

from fastverify import env
from fastverify.comm.communicator import Communicator, create_communicator
from fastverify.comm.group import LOOPBACK, Group, close_group, create_group
from fastverify.errors import FastverifyError
from fastverify.units import BYTES_PER_MB

# The largest message that the chooser measures. Above it the server's own way is as good and needs no memory of ours.
MAX_BYTES = 4 * BYTES_PER_MB
# What a plug-in answers to in VLLM_PLUGINS and SGLANG_PLUGINS, and its entry point's name in pyproject.toml.
PLUGIN_NAME = "fastverify"


def is_asked_for(variable: str) -> bool:
    """Whether the server's list of plug-ins names ours: being installed alone must not change a server."""
    return PLUGIN_NAME in [name.strip() for name in os.environ.get(variable, "").split(",")]


class ServerGroup:
    """All-reduce of one group of a server. Creating it is a collective call of the group's ranks."""

    def __init__(self, cpu_group: ProcessGroup, device: torch.device, name: str, log: logging.Logger) -> None:
        self._group, self._communicator, failure = _open(cpu_group, device)
        failures = _gather(failure, cpu_group)
        communicator = self._communicator
        if communicator is None or any(failures):
            self.close()
            rank, text = next((rank, text) for rank, text in enumerate(failures) if text)
            log.warning("fastverify: group %s keeps the server's all-reduce: rank %d: %s", name, rank, text)
        elif communicator.rank == 0:
            log.info(
                "fastverify: all-reduce of group %s (%d ranks) over %s: %s",
                *(name, communicator.world_size, communicator.backend_name, communicator.choice_reason),
            )

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor | None:
        """The sum as a new tensor, or None where the server must do it. Depends on shape and dtype only."""
        communicator = self._find(x)
        return None if communicator is None else communicator.all_reduce_copy(x)

    def all_reduce_(self, x: torch.Tensor) -> bool:
        """Whether `x` now holds the sum; if not, the server must do it."""
        communicator = self._find(x)
        if communicator is None:
            return False
        communicator.all_reduce(x)
        return True

    def close(self) -> None:
        """Free the communicator. Calling twice is harmless."""
        communicator, self._communicator = self._communicator, None
        group, self._group = self._group, None
        if communicator is not None:
            communicator.close()
        if group is not None:
            close_group(group)

    def _find(self, x: torch.Tensor) -> Communicator | None:
        communicator = self._communicator
        if communicator is None or x.nbytes > MAX_BYTES or not x.is_contiguous() or not communicator.can_run(x).ok:
            return None
        return communicator


def _open(cpu_group: ProcessGroup, device: torch.device) -> tuple[Group | None, Communicator | None, str]:
    """Our group and its communicator, and why they could not be opened on this rank, or nothing."""
    group = None
    try:
        group = create_group(cpu_group.rank(), cpu_group.size(), _open_store(cpu_group), device=device)
        return group, create_communicator(group, env.read("FASTVERIFY_PLUGIN_BACKEND")), ""
    except (FastverifyError, RuntimeError, OSError) as error:
        return group, None, f"{type(error).__name__}: {error}"


def _open_store(cpu_group: ProcessGroup) -> Store:
    """A store of our own between the ranks; rank 0 listens on a free port of the loopback interface."""
    store: Store | None = None
    port = None
    if cpu_group.rank() == 0:
        store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        port = store.port
    ports: list[int | None] = [port]
    dist.broadcast_object_list(ports, src=dist.get_global_rank(cpu_group, 0), group=cpu_group)
    if store is None:
        assert ports[0] is not None
        store = TCPStore(LOOPBACK, ports[0], is_master=False)
    return store


def _gather(text: str, cpu_group: ProcessGroup) -> list[str]:
    texts: list[str] = [""] * cpu_group.size()
    dist.all_gather_object(texts, text, group=cpu_group)
    return texts
