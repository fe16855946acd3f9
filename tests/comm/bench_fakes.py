"""GPU backends that are gloo on a CPU, right or wrong in the ways that kernels are, and a device that is a CPU."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.bench.gpu_rank import GpuRank
from fastverify.comm.bench.gpu_rows import GpuBenchConfig
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.gpu import backends
from fastverify.comm.gpu.backends import GpuBackendSpec
from fastverify.comm.group import Group
from fastverify.comm.rmsnorm import add_residual_rms_norm_

NAMES = ("push", "nccl", "host", "vllm", "flashinfer", "mscclpp")


def open_rank(config: GpuBenchConfig, rank: int, folder: str) -> GpuRank:
    """A rank of the benchmark on a CPU, with the backends below under names of real ones."""
    for name in NAMES:
        backends.GPU_BACKENDS[name] = GpuBackendSpec(name, __name__, f"{name} for this test")
    return GpuRank(config, rank, folder, CpuDevice)


def find_support(group: Group, name: str) -> Support:
    return Support(ok=False, reason="no such GPU here") if name == "mscclpp" and group.rank == 1 else SUPPORTED


def create(group: Group, name: str) -> Any:
    return {"push": OutOfPlace, "host": OffByOneBit, "vllm": StaleInChains, "flashinfer": NormOfOldResidual}.get(
        name, SlowOutOfPlace
    )(group)


class OutOfPlace(GlooBackend):
    """As our kernels: the sum goes elsewhere, the input stays."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.fallbacks: Counter[str] = Counter()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it is measured out of place")

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(out.copy_(x))

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        if x.shape[-1] < 8:
            self.fallbacks["a row is too short"] += 1
        return out.copy_(add_residual_rms_norm_(self.all_reduce_out(x, out), residual, weight, eps))


class SlowOutOfPlace(GlooBackend):
    """As a library's adapter: the sum can go elsewhere, at the price of a copy."""

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return self.all_reduce(out.copy_(x))


class OffByOneBit(GlooBackend):
    """Rank 1 rounds another way: within every bound, but not the bits of rank 0."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        super().all_reduce(x)
        if self._rank == 1:
            x.view(-1).view(torch.int16)[0] ^= 1
        return x


class StaleInChains(GlooBackend):
    """A single call is right; from the second of a chain on, rank 1 sees what the call before it left."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._last: torch.Tensor | None = None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        is_chained = self._last is not None and torch.equal(self._last, x)
        super().all_reduce(x)
        if is_chained:
            x.copy_(self._last)
        self._last = x.clone()
        return x


class NormOfOldResidual(GlooBackend):
    """Norms before it adds."""

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        answer = super().all_reduce_residual_rmsnorm(x.clone() * 0, residual.clone(), weight, eps)
        residual.add_(self.all_reduce(x))
        return answer


class CpuGraph:
    """Runs the calls anew on each replay."""

    def __init__(self, call: Callable[[], object], num_calls: int) -> None:
        self._call, self._num_calls = call, num_calls

    def replay(self) -> None:
        operation = getattr(self._call, "__self__", None)
        if hasattr(operation, "rewind"):
            operation.rewind()
        for _ in range(self._num_calls):
            self._call()


class CpuDevice:
    """See BenchDevice."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.device = torch.device("cpu")
        self.shared = False

    def use(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def capture(self, call: Callable[[], object], num_calls: int) -> CpuGraph:
        return CpuGraph(call, num_calls)

    def time_graph(self, graph: CpuGraph, num_calls: int, num_samples: int, prepare: Any, align: Any) -> list[float]:
        return [self._time(prepare, align, graph.replay) / num_calls for _ in range(num_samples)]

    def time_eager(self, call: Any, num_samples: int, prepare: Any, align: Any) -> list[float]:
        return [self._time(prepare, align, call) for _ in range(num_samples)]

    def flush_l2(self) -> None:
        pass

    def do_nothing(self) -> None:
        pass

    @staticmethod
    def _time(prepare: Any, align: Any, work: Any) -> float:
        prepare()
        align()
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e6
