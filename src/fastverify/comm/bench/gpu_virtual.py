"""The GPU benchmark with virtual ranks: all ranks in one process on one GPU, as the one worker of a lane.

It answers the same questions as bench/gpu_rank.py. A graph has one branch per rank. No link is measured and no library
can take part, since each wants a process and a GPU per rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.bench.gpu_launches import find_candidate, picked_launch_text
from fastverify.comm.bench.gpu_rows import CaseKey, GpuBenchConfig, Prepared
from fastverify.comm.cuda.launch import LINE_BYTES, Launch, Protocol
from fastverify.comm.cuda.rank import CudaRank
from fastverify.comm.cuda.virtual_ranks import VirtualRanks
from fastverify.comm.dtypes import DTYPES
from fastverify.comm.gpu.backends import find_gpu_backend
from fastverify.comm.gpu.case import Inputs, count_calls, digest, is_chain_right, judge, make_inputs
from fastverify.comm.gpu.device import CudaDevice
from fastverify.comm.gpu.launches import (
    OWN_BACKENDS,
    fabric_of,
    launch_text,
    list_launches,
)
from fastverify.comm.gpu.steps import Operation, SlotPool, Way, make_step

VIRTUAL_BACKENDS = tuple(OWN_BACKENDS)
_EMPTY_NODES = 50


@dataclass(frozen=True)
class _RankBackend:
    """One virtual rank as the steps of gpu/steps.py call a backend; `launch` is for algorithms no rule picks."""

    rank: CudaRank
    launch: Launch | None

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.rank.all_reduce(x, out, self.launch)

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        return self.rank.all_reduce_residual_rmsnorm(x, residual, weight, eps, out)


@dataclass
class _Case:
    """One prepared case: an operation per rank; `graph` is None in eager mode."""

    virtual: VirtualRanks
    operations: list[Operation]
    inputs: Inputs
    num_calls: int
    graph: torch.cuda.CUDAGraph | None = None

    def call(self) -> None:
        """The next call of every rank."""
        self.virtual.run(lambda rank: self.operations[rank.rank].call())

    def call_all(self, rank: CudaRank) -> None:
        """All calls of one rank, for its branch of the graph."""
        for _ in range(self.num_calls):
            self.operations[rank.rank].call()

    def holds_same_bits(self, slot: int) -> bool:
        """Whether every rank holds the same answer in this slot."""
        return len({digest([one.outputs[slot], one.pool.slots[slot].residual]) for one in self.operations}) == 1


class VirtualBench:
    """All ranks of a benchmark; `rank` is 0 and the folder is not used."""

    def __init__(self, config: GpuBenchConfig, rank: int, folder: str) -> None:
        del rank, folder
        self._config = config
        self._gpu = CudaDevice(0, 1)
        self._virtual: dict[str, VirtualRanks] = {}
        self._cases: dict[CaseKey, _Case] = {}
        self._at_size: tuple[int, Inputs, list[SlotPool]] | None = None

    def create(self, name: str) -> Support:
        """Set up the inboxes of a backend."""
        self._virtual[name] = VirtualRanks(
            self._config.world_size,
            "host" if fabric_of(name) == "host" else "push",
            max_bytes=max(LINE_BYTES, *self._config.sizes),
            device=str(self._gpu.device),
        )
        return Support(True, find_gpu_backend(name).summary)

    def prepare(self, key: CaseKey) -> Prepared:
        """Check one call, capture the graph, check what it leaves."""
        virtual = self._virtual[key.backend]
        support, launch = self._find_launch(key)
        if not support.ok:
            return Prepared(ok=False, reason=support.reason)
        inputs, pools = self._open_size(key.num_bytes)
        backends = [_RankBackend(rank, launch) for rank in virtual.ranks]
        tried = launch if key.candidate is not None else None
        way = Way(key.backend, key.op, tried, key.separate)
        steps = [make_step(backend, way, inputs.weight) for backend in backends]
        num_calls = 1 if key.mode == "eager" else self._graph_calls()
        operations = [Operation(step, pool, key.op) for step, pool in zip(steps, pools, strict=True)]
        case = _Case(virtual, operations, inputs, num_calls)
        if launch is not None:
            virtual.check_fits(launch)
        with self._gpu.use():
            correct = self._check_single(case)
            if key.mode == "graph":
                self._rewind(case)
                case.graph = virtual.capture(case.call_all)
                correct &= self._check_graph(case)
        self._cases[key] = case
        num_rows, row_bytes = inputs.residual.shape[0], inputs.weight.nbytes
        text = launch_text(launch) if launch else picked_launch_text(backends[0], key, num_rows, row_bytes)
        return Prepared(ok=True, correct=correct, num_calls=num_calls, launch=text)

    def turn(self, key: CaseKey, num_samples: int) -> list[float]:
        """Microseconds per call, one number per sample, of the last rank to end."""
        case = self._cases[key]

        def refill() -> None:
            if case.graph is None:
                self._rewind(case)
            self._fill(case, case.inputs.integers)
            if self._config.cold_l2:
                self._gpu.flush_l2()

        with self._gpu.use():
            if case.graph is None:
                samples_us = self._gpu.time_eager(case.call, num_samples, refill, _no_others)
            else:
                samples_us = self._gpu.time_graph(case.graph, case.num_calls, num_samples, refill, _no_others)
        case.virtual.check()
        return samples_us

    def finish(self, key: CaseKey) -> bool:
        """Check once more and let go of the case."""
        case = self._cases.pop(key)
        with self._gpu.use():
            return self._check_single(case) if case.graph is None else self._check_graph(case)

    def time_empty(self, num_samples: int) -> list[float]:
        """Microseconds per node of a graph with a branch of empty kernels per rank."""
        launch = Launch(Protocol.LINES, 1, 32)

        def work(rank: CudaRank) -> None:
            for _ in range(_EMPTY_NODES):
                rank.start_empty(launch)

        with (
            VirtualRanks(self._config.world_size, device=str(self._gpu.device)) as virtual,
            self._gpu.use(),
        ):
            virtual.run(work)
            virtual.check()
            return self._gpu.time_graph(virtual.capture(work), _EMPTY_NODES, num_samples, _no_others, _no_others)

    def close(self) -> None:
        """Free the inboxes."""
        self._cases.clear()
        for virtual in self._virtual.values():
            virtual.close()

    def _find_launch(self, key: CaseKey) -> tuple[Support, Launch | None]:
        """The launch to ask for; None leaves it to the fabric's rules, which pick one-shot kernels only."""
        world_size = self._config.world_size
        if key.candidate is not None:
            return SUPPORTED, find_candidate(key, world_size)
        if key.backend in ("push", "host"):
            return SUPPORTED, None
        if key.fused:
            return Support(False, f"{key.backend} has no fused kernel between virtual ranks"), None
        launches = list_launches(key.backend, world_size, key.num_bytes, fused=False)
        if not launches:
            return Support(False, f"{key.backend} cannot run with {world_size} ranks"), None
        return SUPPORTED, launches[0]

    def _open_size(self, num_bytes: int) -> tuple[Inputs, list[SlotPool]]:
        if self._at_size is None or self._at_size[0] != num_bytes:
            self._at_size = None
            config, dtype = self._config, DTYPES[self._config.dtype]
            inputs = make_inputs(config.shape(num_bytes), config.world_size, dtype, self._gpu.device)
            num_slots = self._graph_calls() if config.cold_l2 else 1
            pools = [SlotPool(inputs.residual, num_slots) for _ in range(config.world_size)]
            self._at_size = (num_bytes, inputs, pools)
            self._gpu.synchronize()
        return self._at_size[1:]

    def _graph_calls(self) -> int:
        return count_calls(self._config.calls, DTYPES[self._config.dtype], self._config.world_size)

    def _rewind(self, case: _Case) -> None:
        for operation in case.operations:
            operation.rewind()

    def _fill(self, case: _Case, sources: tuple[torch.Tensor, ...]) -> None:
        for operation, source in zip(case.operations, sources, strict=True):
            operation.pool.fill(source, case.inputs.residual)

    def _check_single(self, case: _Case) -> bool:
        self._rewind(case)
        self._fill(case, case.inputs.random)
        case.call()
        case.virtual.check()
        return judge(case.operations[0], case.inputs) == "contract" and case.holds_same_bits(0)

    def _check_graph(self, case: _Case) -> bool:
        assert case.graph is not None
        self._fill(case, case.inputs.integers)
        case.graph.replay()
        torch.cuda.current_stream().synchronize()
        case.virtual.check()
        is_right = is_chain_right(case.operations[0], case.inputs, case.num_calls, "contract")
        return is_right and case.holds_same_bits(-1)


def _no_others() -> None:
    """There is no other process to wait for."""
