"""NCCL behind the contract, through torch's ProcessGroupNCCL on the group's own store: no default process group.

Calls run on torch's current stream (`asyncOp` off) and can be captured once a call has run eagerly. NCCL adds in an
order of its own and rounds 16-bit types at every hop, but every rank holds the same bits; two ranks get the contract's
sum. A rank that does not come keeps NCCL's kernel waiting on the GPU. For eager calls torch's watchdog aborts the
communicator at the group's timeout, so that the next call or `check()` raises; for replayed graphs `check()` is the
deadline. Which rank is missing is known only where its process has ended. Delete graphs before closing.
Sources: torch 2.11 and 2.13, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp. scripts/check_peers.py runs it on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from fastverify.comm.backend import AllReduceBackend, Support
from fastverify.comm.group import Group
from fastverify.comm.peers.library_env import variables_defaulted
from fastverify.comm.peers.nccl_failure import explain_nccl_error, find_last_error
from fastverify.comm.peers.peer_backend import Limits, PeerBackend
from fastverify.comm.peers.peer_gpus import check_own_gpus, first_refusal
from fastverify.comm.peers.peer_store import meet_in_store
from fastverify.errors import CommTimeoutError, EnvironmentMissingError, FastverifyError

# Abort a communicator that is overdue and let the next call say so; torch would end the process by default.
_WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
}


def find_support(group: Group, name: str = "nccl") -> Support:
    """Whether this rank could run `nccl` or `nccl_window`."""
    if not hasattr(c10d, "ProcessGroupNCCL"):
        return Support(ok=False, reason="this torch was built without NCCL")
    support = check_own_gpus(group, "NCCL")
    if name == "nccl_window":
        from fastverify.comm.peers.nccl_window import find_window_support

        return first_refusal(support, find_window_support(group)) if support.ok else support
    return support


def create(group: Group, name: str = "nccl") -> AllReduceBackend:
    """Connect the ranks and make the broadcast that every server starts with.

    Raises: EnvironmentMissingError where it cannot run, CommTimeoutError naming ranks that do not come, ConfigError
    where the environment leaves the broadcast without an algorithm, as a bare NCCL_ALGO=Tree does.
    """
    support = find_support(group, name)
    if not support.ok:
        raise EnvironmentMissingError(f"the {name} backend cannot run: {support.reason}.")
    if name == "nccl_window":
        from fastverify.comm.peers.nccl_window import NcclWindowBackend

        return _started(NcclWindowBackend(group))
    return _started(NcclBackend(group))


def _started(backend: NcclBackend) -> NcclBackend:
    try:
        backend.broadcast(torch.zeros(1, dtype=torch.int8, device=backend.device))
        backend.check()
    except FastverifyError:
        backend.close()
        raise
    return backend


def read_nccl_versions() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`(loaded, built against)`: LD_LIBRARY_PATH or a newer wheel can bring another NCCL than torch was built with."""
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    built = tuple(part for part in version if isinstance(part, int))
    read_loaded = getattr(getattr(c10d, "ProcessGroupNCCL", None), "get_runtime_nccl_version", None)
    return (tuple(read_loaded()) if read_loaded else built), built


class NcclBackend(PeerBackend):
    """Collectives of one NCCL communicator."""

    name = "nccl"
    limits = Limits("NCCL")

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._is_aborted = False
        store, _ = meet_in_store(group, self.name)
        self.nccl_version, _ = read_nccl_versions()
        with torch.cuda.device(self._device), variables_defaulted(_WATCHDOG):
            self._nccl = _open_process_group(store, group)
            # NCCL connects at the first call, which must not be inside a capture.
            self.all_reduce(torch.zeros(1, device=self._device))
            self.check()

    @property
    def device(self) -> torch.device:
        """Where this rank's tensors live."""
        return self._device

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` in rank order; any dtype that NCCL knows."""
        gathered = x.new_empty((self._group.world_size, *x.shape))
        # NCCL moves bytes; bool and others have no type of their own there.
        source, target = x.reshape(-1).view(torch.uint8), gathered.view(-1).view(torch.uint8)
        self._run("an all-gather", lambda: self._nccl._allgather_base(target, source, _gather_options()))
        return gathered

    def broadcast(self, x: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Rank `root`'s `x`, written into every rank's: what servers do at their start and for sampled tokens."""
        self._run("a broadcast", lambda: self._nccl.broadcast([x], _broadcast_options(root)))
        return x

    def check(self, timeout_s: float | None = None) -> None:
        """Wait until everything on the current stream is done.

        Raises: CommTimeoutError after `timeout_s` (default: the group's) or soon after a rank's process has ended; the
        communicator is aborted then, which ends its kernels on this rank.
        """
        timeout_s = self._group.timeout_s if timeout_s is None else timeout_s
        # Where the watchdog has ended the kernel, the stream is done, but what it left is no sum.
        if self._is_aborted or not self._wait(timeout_s) or self._has_failed():
            self.abort()
            raise self._overdue("an NCCL collective", timeout_s)

    def abort(self) -> None:
        """Give the communicator up: kernels that wait for a peer end, and every later call raises."""
        if not self._is_aborted:
            self._is_aborted = True
            self._nccl.abort()

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        assert out is x  # NCCL could sum out of place, torch's wrapper cannot
        self._run("an all-reduce", lambda: self._nccl.allreduce([out], _sum_options()))

    def _run(self, what: str, start: Callable[[], Any]) -> None:
        if self._is_closed:
            raise FastverifyError(f"the {self.name} backend is closed. Create a new one on every rank.")
        if self._is_aborted or self._has_failed():
            raise self._overdue("an earlier NCCL collective", self._group.timeout_s)
        try:
            work = start()
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise explain_nccl_error(error, what, self.nccl_version, self._peers, self._group) from error

    def _has_failed(self) -> bool:
        """Whether torch's watchdog has given the communicator up."""
        return bool(self._nccl.get_error() != c10d.ErrorType.SUCCESS)

    def _overdue(self, what: str, timeout_s: float) -> CommTimeoutError:
        return CommTimeoutError(f"{self._late(what, timeout_s)} Its communicator is aborted: create new groups.")

    def close(self) -> None:
        """Let go of the communicator; every rank calls this. Beside a dead or late rank it is aborted instead."""
        with suppress(CommTimeoutError):
            super().close()

    def _free(self) -> None:
        # Destroying is collective, and waits for graphs that hold calls: not beside a dead peer, not for ever.
        if self._peers.find_dead():
            self.abort()
            return
        try:
            self._nccl.shutdown()
        except RuntimeError as error:
            raise FastverifyError(
                f"NCCL did not let go of its communicator within {self._group.timeout_s:g} s. Close it on every rank, "
                f"and delete the CUDA graphs that hold its calls before. {find_last_error(str(error))}"
            ) from error


def _open_process_group(store: Any, group: Group) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=group.timeout_s)
    return c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), group.rank, group.world_size, options)


@cache
def _sum_options() -> c10d.AllreduceOptions:
    options = c10d.AllreduceOptions()
    options.reduceOp = c10d.ReduceOp(c10d.ReduceOp.SUM)
    options.asyncOp = False
    return options


@cache
def _gather_options() -> c10d.AllgatherOptions:
    options = c10d.AllgatherOptions()
    options.asyncOp = False
    return options


@cache
def _broadcast_options(root: int) -> c10d.BroadcastOptions:
    options = c10d.BroadcastOptions()
    options.rootRank = root
    options.asyncOp = False
    return options
