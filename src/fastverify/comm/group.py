"""A group of ranks on one host: who takes part, and the gloo process group that connects them.

It knows nothing about backends. Groups are independent of each other and of torch's default process group, so a
process may be in several at once (a tensor-parallel group and a draft group, say). All traffic stays on loopback.
"""

from __future__ import annotations

import os
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import torch
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroup, ProcessGroupGloo, Store, TCPStore

from fastverify import env
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import CommTimeoutError, ConfigError

LOOPBACK = "127.0.0.1"
# Arbitrary: long enough for slow process starts; the group's own timeout applies once it exists.
_RENDEZVOUS_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Group:
    """This rank's view of its group. `torch_group` and `store` are None exactly when there is one rank.

    `device` is where the tensors of this rank's calls live. `torch_group` is gloo's on any device: backends set
    themselves up over it. `store` is the group's own namespace, for libraries that bring their own way to connect.
    """

    rank: int
    world_size: int
    torch_group: ProcessGroup | None
    name: str
    timeout_s: float
    process_ids: tuple[int, ...]
    device: torch.device = torch.device("cpu")
    store: Store | None = None
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_rank(self.rank, self.world_size)
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be above 0, got {self.timeout_s}.")
        if (self.torch_group is None) != (self.world_size == 1):
            raise ConfigError(f"a group of {self.world_size} rank(s) got torch_group={self.torch_group!r}.")


def create_group(
    rank: int,
    world_size: int,
    init_method_or_store: str | Store | None = None,
    *,
    timeout_s: float | None = None,
    device: torch.device | str = "cpu",
) -> Group:
    """Connect `world_size` processes; every one of them calls this with the same rendezvous.

    Rendezvous: a torch store, `tcp://127.0.0.1:PORT` (rank 0 listens) or `file:///path` (a path that does not exist
    yet). A store may serve many groups: the n-th call of every rank on one store makes the n-th group. For a group of
    some of the ranks, pass `PrefixStore("some-name", store)` and the rank within that subset. `device` is where this
    rank's tensors live, such as "cpu" or "cuda:1"; ranks may share a GPU.
    Raises: CommTimeoutError naming the ranks that did not come.
    """
    _check_rank(rank, world_size)
    device = _open_device(device)
    timeout_s = env.read_positive_float("FASTVERIFY_COMM_TIMEOUT_S") if timeout_s is None else timeout_s
    if world_size == 1:
        return Group(0, 1, None, _new_name(), timeout_s, (os.getpid(),), device, gpus=(_gpu_name(device),))
    if init_method_or_store is None:
        raise ConfigError(f"a group of {world_size} ranks needs a store, tcp:// or file:// to meet at, got None.")
    store = _open_store(init_method_or_store, rank, world_size)
    generation = store.add(f"fastverify/{rank}", 1)
    store = PrefixStore(f"fastverify/{generation}", store)
    name, process_ids, gpus = _meet(store, rank, world_size, _gpu_name(device))
    try:
        torch_group = _connect(store, rank, world_size, timeout_s)
    except RuntimeError as error:
        with closing(PeerProcesses(process_ids)) as peers:
            why = peers.explain_failure()
        raise CommTimeoutError(
            f"rank {rank} could not connect to its group of {world_size}: {why}. "
            f"gloo said: {str(error).splitlines()[0]}"
        ) from error
    return Group(rank, world_size, torch_group, name, timeout_s, process_ids, device, store, gpus)


def close_group(group: Group) -> None:
    """Close the sockets of the group. Its communicators must be closed before."""
    if group.torch_group is not None:
        # Older torch has no shutdown(); there the sockets close with the object.
        with suppress(AttributeError):
            group.torch_group.shutdown()


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ConfigError(f"0 <= rank < world_size must hold, got rank {rank} and world_size {world_size}.")


def _open_device(name: torch.device | str) -> torch.device:
    """The device with its number; "cuda" alone is the current one."""
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"a group's device is cpu or cuda:N, got {str(name)!r}.")
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _new_name() -> str:
    return f"fastverify-{uuid.uuid4().hex[:12]}"


def _open_store(init_method_or_store: str | Store, rank: int, world_size: int) -> Store:
    if not isinstance(init_method_or_store, str):
        return init_method_or_store
    address = urlsplit(init_method_or_store)
    if address.scheme == "tcp" and address.hostname and address.port:
        return TCPStore(
            address.hostname,
            address.port,
            is_master=rank == 0,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=timedelta(seconds=_RENDEZVOUS_TIMEOUT_S),
        )
    if address.scheme == "file" and Path(address.path).is_absolute():
        return FileStore(address.path, world_size)
    raise ConfigError(f"a rendezvous is tcp://HOST:PORT or file:///PATH, got {init_method_or_store!r}.")


def _gpu_name(device: torch.device) -> str:
    """UUID of the GPU, the same in every process; numbers need not be."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _meet(store: Store, rank: int, world_size: int, gpu: str) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Agree on the group's name (rank 0 makes it) and learn every rank's process id and GPU."""
    if rank == 0:
        store.set("name", _new_name())
    store.set(f"process/{rank}", f"{os.getpid()} {gpu}")
    keys = [f"process/{peer}" for peer in range(world_size)]
    try:
        store.wait(["name", *keys], timedelta(seconds=_RENDEZVOUS_TIMEOUT_S))
    except RuntimeError as error:
        missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
        raise CommTimeoutError(
            f"every rank must join the group within {_RENDEZVOUS_TIMEOUT_S:.0f} s, rank(s) {missing} of {world_size} "
            f"did not. Look for their traceback."
        ) from error
    members = [store.get(key).decode().partition(" ") for key in keys]
    return store.get("name").decode(), tuple(int(pid) for pid, _, _ in members), tuple(name for _, _, name in members)


def _connect(store: Store, rank: int, world_size: int, timeout_s: float) -> ProcessGroup:
    """A gloo group on loopback, apart from torch's registry of groups."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch stubs miss it
    options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=timeout_s)
    return cast(ProcessGroup, ProcessGroupGloo(store, rank, world_size, options))
