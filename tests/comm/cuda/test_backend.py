"""Opening our backends without a GPU: what they say, and what becomes of a probe's result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastverify.comm.cuda import backend as opening
from fastverify.comm.cuda.backend import create, create_fabric_backend, find_support
from fastverify.comm.cuda.launch import Launch, Protocol, Rule
from fastverify.comm.cuda.probe import Fault, ProbeCase, ProbeResult
from fastverify.comm.cuda.push import push_fabric
from fastverify.comm.group import Group, create_group
from fastverify.errors import ConfigError, EnvironmentMissingError
from tests.ranks import run_ranks

OURS = ("push", "push_two_shot", "islands", "host", "host_two_shot")
CASES = (ProbeCase(Launch(Protocol.LINES, 1, 32), 4098), ProbeCase(Launch(Protocol.SENTINEL, 1, 32), 4098))


def make_group(world_size: int, device: str = "cuda:0") -> Group:
    group = Group(0, 1, None, "name", 1.0, (0,))
    changes: dict[str, object] = {
        "world_size": world_size,
        "device": torch.device(device),
        "gpus": tuple(f"GPU-{rank}" for rank in range(world_size)),
    }
    for name, value in changes.items():
        object.__setattr__(group, name, value)
    return group


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that looks like one with GPUs that reach each other, as far as support is concerned."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(opening, "open_driver", lambda: None)
    monkeypatch.setattr(opening, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(opening, "find_unreachable", lambda rank, gpus: [])
    monkeypatch.setattr(opening, "_refused", {})
    return monkeypatch


@pytest.mark.parametrize("name", OURS)
def test_support_with_and_without_gpus(gpu: pytest.MonkeyPatch, name: str) -> None:
    assert find_support(make_group(4), name).ok
    for group, reason in (
        (make_group(4, "cpu"), "needs ranks on NVIDIA GPUs, this one is on cpu"),
        (make_group(9), "2 to 8 ranks, the group has 9"),
    ):
        support = find_support(group, name)
        assert not support.ok
        assert reason in support.reason
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert find_support(make_group(4), name).reason == "it needs SM80 or later, this GPU has SM75"


def test_each_name_has_its_own_obstacles(gpu: pytest.MonkeyPatch) -> None:
    assert "two halves of 4 or 8 ranks, the group has 2" in find_support(make_group(2), "islands").reason
    gpu.setattr(opening, "find_unreachable", lambda rank, gpus: [1, 3])
    assert "cannot reach the memory of rank(s) 1, 3" in find_support(make_group(4), "push").reason
    assert find_support(make_group(4), "host").ok
    gpu.setattr(opening, "find_room", lambda num_bytes: opening.Support(ok=False, reason=f"no {num_bytes}"))
    assert find_support(make_group(4), "host_two_shot").reason.startswith("no ")


def test_what_cannot_be_imported_is_a_reason(gpu: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise EnvironmentMissingError("CUDA kernels need the NVRTC library.")

    gpu.setattr(opening, "nvrtc_version", fail)
    support = find_support(make_group(2), "push")
    assert (support.ok, support.reason) == (False, "CUDA kernels need the NVRTC library")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="is one of push, push_two_shot"):
        create(make_group(2), "pull")
    with pytest.raises(ConfigError, match="is one of push, host, got 'islands'"):
        create_fabric_backend(make_group(4), "islands")


@pytest.mark.ranks
def test_without_a_gpu_every_rank_gets_the_same_error() -> None:
    messages = run_ranks(open_on_cpu, 2)
    assert messages[0] == messages[1]
    assert "the all-reduce push cannot run: it needs ranks on NVIDIA GPUs" in messages[0]


def open_on_cpu(rank: int, world_size: int, rendezvous: str) -> str:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    with pytest.raises(EnvironmentMissingError) as caught:
        create(group, "push")
    return str(caught.value)


class RuledRank:
    def __init__(self) -> None:
        self.tables: tuple[tuple[Rule, ...], ...] = ()

    def set_rules(self, *tables: tuple[Rule, ...]) -> None:
        self.tables = tables


def obey(*faults: Fault) -> RuledRank:
    rank: Any = RuledRank()
    opening._obey(ProbeResult(CASES, faults, 0.1), make_group(2), rank, push_fabric())
    return rank


def test_a_clean_probe_changes_nothing(gpu: pytest.MonkeyPatch) -> None:
    assert obey().tables == ()


def test_a_wrong_protocol_leaves_the_tables(gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    rank = obey(Fault(1, 0, 1, 7, 100))
    launches = [rule.launch for rules in rank.tables for rule in rules]
    assert launches
    assert all(launch.protocol is not Protocol.SENTINEL for launch in launches)
    assert "push memory is used without the protocol(s) sentinel: wrong data from rank 0 to rank 1" in caplog.text
    assert find_support(make_group(2), "push").ok


@pytest.mark.parametrize("faults", [[Fault(0, 0, 1, -1, 0)], [Fault(0, 0, 1, 7, 100), Fault(1, 0, 1, 7, 100)]])
def test_memory_that_fails_is_refused_and_stays_so(gpu: pytest.MonkeyPatch, faults: list[Fault]) -> None:
    with pytest.raises(EnvironmentMissingError, match="the start-up probe refused push memory: "):
        obey(*faults)
    support = find_support(make_group(2), "push_two_shot")
    assert "the start-up probe refused it" in support.reason
    assert "from rank 0 to rank 1 (GPU GPU-0 to GPU-1)" in support.reason
    assert find_support(make_group(2), "host").ok
