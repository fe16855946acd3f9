"""Facts about GPUs that are not there, and groups that say they use them: for the logic that decides by such facts.

Nothing here runs a kernel or claims a result of one.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch

from fastverify.comm.group import Group
from fastverify.comm.peers import peer_gpus

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e", "GPU-f", "GPU-g", "GPU-h")


@dataclass
class FakeFacts:
    """By default two H200 with NVLink."""

    num_gpus: int = 2
    sm: tuple[int, int] = (9, 0)
    reach: bool = True
    atomics: bool | None = True
    multicast: bool = True

    def is_available(self) -> bool:
        return self.num_gpus > 0

    def uuids(self) -> list[str]:
        return list(GPUS[: self.num_gpus])

    def capability(self, gpu: int) -> tuple[int, int]:
        return self.sm

    def can_access(self, gpu: int, peer: int) -> bool:
        return self.reach

    def has_native_atomics(self, gpu: int, peer: int) -> bool | None:
        return self.atomics

    def has_multicast(self, gpu: int) -> bool:
        return self.multicast


def set_facts(monkeypatch: pytest.MonkeyPatch, facts: FakeFacts) -> None:
    """What the checks are told from now on."""
    monkeypatch.setattr(peer_gpus, "FACTS", facts)


def fake_group(
    world_size: int = 2, *, device: str = "cuda:0", gpus: tuple[str, ...] | None = None, store: Any = None
) -> Group:
    """Rank 0 of a group that nobody else is in."""
    torch_group = cast(Any, object()) if world_size > 1 else None
    names = GPUS[:world_size] if gpus is None else gpus
    return Group(0, world_size, torch_group, "fake", 1.0, (1,) * world_size, torch.device(device), store, names)


@dataclass
class Capturing:
    """Whether the fake stream is being captured."""

    now: bool = False


class FakeEvent:
    """Whether what was recorded is done."""

    is_done = True

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return FakeEvent.is_done


def put_gpu_calls_aside(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    """Adapters ask torch.cuda about devices, streams and captures; on CPU tensors these answers do."""
    capturing = Capturing()
    answers: dict[str, Callable[..., Any]] = {
        "device": nullcontext,
        "synchronize": lambda device=None: None,
        "is_current_stream_capturing": lambda: capturing.now,
        "current_stream": lambda device=None: FAKE_STREAM,
    }
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "is_done", True)
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return capturing


class FakeStream:
    """A stream by name only."""

    cuda_stream = 77

    def __init__(self) -> None:
        self.num_waits = 0

    def synchronize(self) -> None:
        self.num_waits += 1


FAKE_STREAM = FakeStream()
