"""Backends that stand in for those of GPUs: they sum through shared memory and take the time that a formula says.

The time is read from a clock that every call moves, so a choice made with them is the same on every machine. Names are
those of gpu/backends.py, since that is what rules and reports speak of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, Rule
from fastverify.comm.gpu.backends import GpuBackendSpec
from fastverify.comm.group import Group
from fastverify.comm.shm import ShmBackend
from fastverify.errors import EnvironmentMissingError, UnsupportedError
from tests.comm.bench_fakes import CpuGraph

KB = 1024


@dataclass
class Clock:
    """Simulated microseconds of this process; `opened` and `closed` are the backends that came and went."""

    now_us: float = 0.0
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


CLOCK = Clock()


@cache
def open_transport(group: Group) -> ShmBackend:
    """What really sums, one for all stand-ins of a group."""
    return ShmBackend(group)


class ClockDevice:
    """Reads the clock; rank 1 is slower than rank 0, and one replay in twenty takes a hundred times as long."""

    device = torch.device("cpu")

    def __init__(self, rank: int) -> None:
        self._factor = 1.0 + 0.5 * rank
        self._random = Random(rank)

    def use(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def capture(self, call: Callable[[], object], num_calls: int) -> CpuGraph:
        return CpuGraph(call, num_calls)

    def time_graph(
        self, graph: CpuGraph, num_calls: int, num_samples: int, prepare: Callable[[], object], align: object
    ) -> list[float]:
        samples_us = []
        for _ in range(num_samples):
            prepare()
            start_us = CLOCK.now_us
            graph.replay()
            late = 100.0 if self._random.random() < 0.05 else 1.0
            samples_us.append((CLOCK.now_us - start_us) / num_calls * self._factor * late)
        return samples_us


class FakeLibrary:
    """A library whose calls take `base_us` and `us_per_kb`; `change` is what it does to a right sum."""

    def __init__(
        self, group: Group, name: str, base_us: float, us_per_kb: float, change: Callable[[torch.Tensor], object]
    ) -> None:
        self.name = name
        self._transport = open_transport(group)
        self._base_us, self._us_per_kb, self._change = base_us, us_per_kb, change
        CLOCK.opened.append(name)

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        if self.name == "symm_mem_multimem" and num_elements % 8:
            return Support(ok=False, reason="multiples of 8 only")
        return SUPPORTED

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self._transport.all_reduce(x)
        self._change(x)
        CLOCK.now_us += self._base_us + self._us_per_kb * x.nbytes / KB
        return x

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        CLOCK.now_us += 20.0
        return self._transport.all_reduce_residual_rmsnorm(x, residual, weight, eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        CLOCK.now_us += self._base_us
        return self._transport.all_gather(x)

    def close(self) -> None:
        CLOCK.closed.append(self.name)


class FakeOutOfPlace(FakeLibrary):
    """In place it copies the answer back, which takes another 5 us."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        CLOCK.now_us += 5.0
        return super().all_reduce(x)

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(out.copy_(x))


class FakeRank:
    """As CudaRank where the chooser meets it."""

    def __init__(self, transport: ShmBackend) -> None:
        self._transport = transport
        self.rules: tuple[Rule, ...] = ()
        self.fused_rules: tuple[Rule, ...] = ()

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor, launch: Launch) -> torch.Tensor:
        CLOCK.now_us += launch_us(launch, x.nbytes)
        return self._transport.all_reduce(out.copy_(x))

    def all_reduce_residual_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
        launch: Launch,
    ) -> torch.Tensor:
        if launch.cluster == 2:
            raise UnsupportedError("this GPU has no clusters of 2")  # on every rank alike: the others may go on
        CLOCK.now_us += launch_us(launch, x.nbytes) + 0.05
        return self._transport.all_reduce_residual_rmsnorm(out.copy_(x), residual, weight, eps)

    def set_rules(self, rules: tuple[Rule, ...], fused_rules: tuple[Rule, ...]) -> None:
        self.rules, self.fused_rules = rules, fused_rules


def launch_us(launch: Launch, num_bytes: int) -> float:
    """Lines are best up to 8 KB, sentinels up to 256 KB, two rounds beyond; wide blocks cost a little."""
    kb = num_bytes / KB
    if launch.algorithm is Algorithm.TWO_SHOT:
        return 7.0 + 0.01 * kb + launch.threads / 10_000
    base_us, us_per_kb = (2.0, 0.1) if launch.protocol is Protocol.LINES else (2.5, 0.04)
    return base_us + us_per_kb * kb + launch.threads / 10_000


class FakePush:
    """As CudaBackend where the chooser meets it."""

    broken_protocols: frozenset[Protocol] = frozenset()
    fabric = "push"

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self._transport = open_transport(group)
        self.rank = FakeRank(self._transport)
        CLOCK.opened.append(name)

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        return self._transport.can_run(num_elements, dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._transport.all_reduce(x)

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self._transport.all_reduce(out.copy_(x))

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return self._transport.all_reduce_residual_rmsnorm(x, residual, weight, eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        CLOCK.now_us += 3.0
        return self._transport.all_gather(x)

    def close(self) -> None:
        CLOCK.closed.append(self.name)


class FakeBroken(FakeLibrary):
    """Answers rank 0 and raises on rank 1, without a word between them."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("illegal instruction")
        return x

    def __init__(self, group: Group, name: str) -> None:
        super().__init__(group, name, 0.1, 0.0, lambda x: x)
        self.fails = group.rank == 1


def find_support(group: Group, name: str) -> Support:
    if name == "mscclpp" and group.rank == 1:
        return Support(ok=False, reason="no MSCCL++ here")
    return SUPPORTED


def create(group: Group, name: str) -> Any:
    if name in ("push", "push_two_shot"):
        return FakePush(group, name)
    if name == "flashinfer":
        return FakeBroken(group, name)
    if name == "nccl_window":
        raise EnvironmentMissingError("the window cannot be registered")
    base_us, us_per_kb, change = {
        "nccl": (11.0, 0.008, lambda x: x),
        "vllm": (0.5, 0.0, lambda x: x.add_(0.5)),  # the fastest, and wrong
        "symm_mem_multimem": (8.0, 0.003, lambda x: x),
    }[name]
    if name == "symm_mem_multimem":
        return FakeOutOfPlace(group, name, base_us, us_per_kb, change)
    return FakeLibrary(group, name, base_us, us_per_kb, change)


def create_fabric_backend(group: Group, fabric: str) -> FakePush:
    return FakePush(group, fabric)


def make_specs(*names: str) -> dict[str, GpuBackendSpec]:
    """Specs as in gpu/backends.py."""
    return {name: GpuBackendSpec(name, __name__, "a stand-in") for name in names}
