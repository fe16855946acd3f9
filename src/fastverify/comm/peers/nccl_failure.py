"""NCCL's errors as errors of ours: its last message, what it means, and what to do.

torch puts NCCL's last error text (`ncclGetLastError`) behind a line "Last error:"; many different faults share the few
result codes before it. `check_server_calls` makes the calls that servers make beside all-reduce, eagerly and inside a
capture, to show how a setting fails for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch

from fastverify.comm.group import Group
from fastverify.comm.peers.nccl_settings import NcclSetting, explain_failure
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import CommTimeoutError, ConfigError, FastverifyError, UnsupportedError

_LAST_ERROR = "Last error:"
# How torch and NCCL say that a rank or its connection is gone.
_GONE = ("aborted", "ncclRemoteError", "ncclSystemError", "timed out", "Connection closed", "Connection refused")
_DUPLICATE_GPU = "Duplicate GPU detected"


def explain_nccl_error(
    error: RuntimeError, what: str, nccl_version: tuple[int, ...], peers: PeerProcesses, group: Group
) -> FastverifyError:
    """The error to raise instead of torch's."""
    text = str(error)
    said = f"NCCL {'.'.join(map(str, nccl_version))} said: {find_last_error(text)}"
    advice = explain_failure(environment_setting(), text, nccl_version)
    if advice is not None:
        return ConfigError(f"{advice} {said}")
    if _DUPLICATE_GPU in text:
        return UnsupportedError(f"NCCL needs a GPU per rank, two of these {group.world_size} share one. {said}")
    if any(mark in text for mark in _GONE):
        return CommTimeoutError(
            f"rank {group.rank} waited for {what} of {group.world_size} ranks with a limit of {group.timeout_s:g} s: "
            f"{peers.explain_failure()}. {said}"
        )
    return FastverifyError(f"NCCL failed in {what} on rank {group.rank}. {said} Set NCCL_DEBUG=WARN to see more.")


def find_last_error(text: str) -> str:
    """NCCL's own last message, or the first line where there is none."""
    _, found, rest = text.partition(_LAST_ERROR)
    lines = [line.strip() for line in (rest if found else text).splitlines() if line.strip()]
    return lines[0] if lines else "nothing"


def environment_setting() -> NcclSetting:
    """What the process's own environment asks of NCCL, as a setting."""
    names = ("NCCL_ALGO", "NCCL_PROTO")
    return NcclSetting("environment", "this process", {name: os.environ[name] for name in names if name in os.environ})


class ServerCalls(Protocol):
    """The calls of NcclBackend that servers make beside all-reduce."""

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's `x`."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`."""
        ...


@dataclass(frozen=True)
class CallOutcome:
    """One call as a server makes it. `error`: what was raised, "" where it worked; `capture_error`: by its capture."""

    call: str
    captured: bool
    error: str = ""
    capture_error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it worked."""
        return not (self.error or self.capture_error)


def check_server_calls(backend: ServerCalls, device: torch.device) -> list[CallOutcome]:
    """A broadcast and an all-gather, eagerly and inside a capture; every rank calls this. Nothing is raised."""
    x = torch.zeros(1024, dtype=torch.int8, device=device)
    calls = {"broadcast": lambda: backend.broadcast(x), "all_gather": lambda: backend.all_gather(x)}
    outcomes = [CallOutcome(name, captured=False, error=_error_of(call)) for name, call in calls.items()]
    return outcomes + [_capture(name, call, device) for name, call in calls.items()]


def _capture(name: str, call: Callable[[], object], device: torch.device) -> CallOutcome:
    graph, error = torch.cuda.CUDAGraph(), ""
    torch.cuda.synchronize(device)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        graph.capture_begin(capture_error_mode="thread_local")
        error = _error_of(call)
        capture_error = _error_of(graph.capture_end)
    with suppress(RuntimeError):  # reported above
        torch.cuda.synchronize(device)
    return CallOutcome(name, captured=True, error=error, capture_error=capture_error)


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, FastverifyError) as error:
        return str(error)
    return ""
