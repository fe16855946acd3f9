"""A backend opened, used and closed by processes that take the CPU for their GPU: everything but driver and kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fastverify.comm.cuda import backend as opening
from fastverify.comm.cuda import host_memory, ipc, probe
from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.cuda.backend import create, create_fabric_backend
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group, create_group
from fastverify.errors import EnvironmentMissingError
from tests.comm.cuda.fake_drivers import FakeHostDriver, FakeSlabDriver
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks


@dataclass
class FakeKernels:
    """Counts what is loaded."""

    loaded: int = 0

    def all_reduce(self, dtype: torch.dtype, launch: Launch, *, outbox: bool = False) -> None:
        self.loaded += 1

    def all_gather(self, launch: Launch, *, outbox: bool = False) -> None:
        self.loaded += 1


def make_rank_class(group: Group, spoils: Callable[[Launch], bool]) -> type:
    """Stands in for CudaRank: sums through gloo, and loses the data of rank 1 where `spoils` says so."""

    class GlooRank:
        def __init__(self, rank: int, inboxes: list[int], *_: Any, spin_bound_cycles: int) -> None:
            assert len(set(inboxes)) == group.world_size
            assert spin_bound_cycles > 0
            self.device = group.device
            self.tables: tuple[Any, ...] = ()
            self._gloo = GlooBackend(group)

        def all_reduce(
            self, x: torch.Tensor, out: torch.Tensor | None = None, launch: Launch | None = None
        ) -> torch.Tensor:
            parts = self._gloo.all_gather(x)
            if launch is not None and spoils(launch):
                parts[1] = 0
            return (x if out is None else out).copy_(parts.float().sum(0))

        def set_rules(self, *tables: Any) -> None:
            self.tables = tables

        def status(self) -> None:
            return None

        def abort(self) -> None:
            pass

    return GlooRank


def pretend(group: Group, slabs: FakeSlabDriver, pins: FakeHostDriver, spoils: Callable[[Launch], bool]) -> FakeKernels:
    """Put fakes where CUDA would be; this process ends with the test."""
    kernels = FakeKernels()
    fakes: list[tuple[Any, str, Any]] = [
        (opening, "find_support", lambda *_: opening.SUPPORTED),
        (opening, "kernel_set", lambda *_: kernels),
        (opening, "find_spin_bound", lambda *_: 1000),
        (opening, "_PROBE_ROUNDS", 3),
        (opening, "find_numa_node", lambda _: 0),
        (opening, "call_driver", lambda *_: None),
        (opening, "CudaRank", make_rank_class(group, spoils)),
        (ipc, "CudaSlabDriver", lambda: slabs),
        (host_memory, "CudaHostDriver", lambda: pins),
        (probe, "_wait_for_gpu", lambda _: True),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "device", nullcontext),
        (torch.cuda, "stream", nullcontext),
        (torch.cuda, "Stream", lambda _: None),
    ]
    for owner, name, fake in fakes:
        setattr(owner, name, fake)
    return kernels


def open_group(rank: int, world_size: int, rendezvous: str) -> Group:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    return replace(group, gpus=tuple("ab"[peer % 2] for peer in range(world_size)))


@pytest.mark.parametrize("name", ["push", "push_two_shot", "host"])
def test_a_backend_opens_sums_and_leaves_nothing(name: str) -> None:
    run_ranks(open_sum_close, 3, name)


def open_sum_close(rank: int, world_size: int, rendezvous: str, name: str) -> None:
    group = open_group(rank, world_size, rendezvous)
    slabs, pins = FakeSlabDriver(1000 * (rank + 1)), FakeHostDriver()
    kernels = pretend(group, slabs, pins, lambda launch: False)
    for _ in range(2):
        backend = create(group, name)
        assert (backend.name, backend.fabric) == (name, name.partition("_")[0])
        assert (bool(slabs.live), bool(pins.pinned)) == (name != "host", name == "host")
        assert kernels.loaded > 4
        assert backend.probed is not None
        assert backend.probed.faults == ()
        assert not backend.broken_protocols
        algorithms = {case.launch.algorithm for case in backend.probed.cases}
        assert (Algorithm.TWO_SHOT in algorithms) == (name == "push_two_shot")
        assert backend.all_reduce(torch.full((5,), float(rank))).tolist() == [3.0] * 5
        backend.close()
        assert not slabs.live
        assert not pins.pinned


def test_one_kind_of_memory_has_every_algorithm() -> None:
    run_ranks(open_fabric, 4)


def open_fabric(rank: int, world_size: int, rendezvous: str) -> None:
    group = open_group(rank, world_size, rendezvous)
    pretend(group, FakeSlabDriver(1000 * (rank + 1)), FakeHostDriver(), lambda launch: False)
    backend = create_fabric_backend(group, "push")
    assert backend.probed is not None
    assert {case.launch.algorithm for case in backend.probed.cases} == set(Algorithm)
    backend.close()


def test_a_protocol_that_fails_is_not_used() -> None:
    run_ranks(open_with_bad_sentinels, 2)


def open_with_bad_sentinels(rank: int, world_size: int, rendezvous: str) -> None:
    group = open_group(rank, world_size, rendezvous)
    slabs = FakeSlabDriver(1000 * (rank + 1))
    # Only rank 0 reads wrong data; rank 1 must know too.
    pretend(group, slabs, FakeHostDriver(), lambda launch: rank == 0 and launch.protocol is Protocol.SENTINEL)
    backend = create(group, "push")
    assert backend.broken_protocols == {Protocol.SENTINEL}
    rank_tables: Any = backend.rank
    assert rank_tables.tables
    backend.close()


def test_a_link_that_fails_everywhere_is_refused_on_every_rank() -> None:
    messages = run_ranks(open_with_bad_link, 2)
    assert messages[0] == messages[1]
    assert "refused push memory: wrong data from rank 1 to rank 0 (GPU b to a)" in messages[0]


def open_with_bad_link(rank: int, world_size: int, rendezvous: str) -> str:
    group = open_group(rank, world_size, rendezvous)
    slabs = FakeSlabDriver(1000 * (rank + 1))
    pretend(group, slabs, FakeHostDriver(), lambda launch: rank == 0)
    with pytest.raises(EnvironmentMissingError) as caught:
        create(group, "push")
    assert not slabs.live
    assert exchange(group, b"still here") == [b"still here"] * 2
    return str(caught.value)
