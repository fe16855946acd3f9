"""One rank of the GPU benchmark, as a lane's worker: sets backends up, prepares cases, times blocks, checks again.

Ranks align over gloo on the CPU before every sample, and compare their answers bit by bit. It asks the backends nothing
but their contract. Rank processes import neither the compiled CPU modules nor the command line.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.backend import Support
from fastverify.comm.bench.gpu_launches import find_candidate, picked_launch_text
from fastverify.comm.bench.gpu_rows import CaseKey, GpuBenchConfig, Prepared
from fastverify.comm.cuda.launch import Launch
from fastverify.comm.dtypes import DTYPES
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.gpu.backends import find_gpu_backend
from fastverify.comm.gpu.case import (
    Inputs,
    count_calls,
    digest,
    is_chain_right,
    judge,
    make_inputs,
    may_be_used,
)
from fastverify.comm.gpu.device import BenchDevice, CudaDevice
from fastverify.comm.gpu.launches import OWN_BACKENDS, launch_text
from fastverify.comm.gpu.steps import AUTO, Operation, SlotPool, Way, find_styles, make_step
from fastverify.comm.gpu.table import Accuracy
from fastverify.comm.group import Group, close_group, create_group
from fastverify.comm.peers.nccl_failure import check_server_calls
from fastverify.errors import UnsupportedError

# Processes that share a GPU run in turns of milliseconds, so a long chain would take for ever.
_CALLS_ON_A_SHARED_GPU = 4
_EMPTY_NODES = 50
_EITHER_STYLE = "in place or out of place, whichever is faster"
# Enough to tell a copy from no copy.
_STYLE_SAMPLES = 5


@dataclass
class _Case:
    """One prepared case; `graph` is None in eager mode."""

    operation: Operation
    inputs: Inputs
    num_calls: int
    graph: Any = None
    correct: bool = True


class GpuRank:
    """Answers the questions of bench/gpu_run.py. Every rank gets the same ones in the same order."""

    def __init__(
        self,
        config: GpuBenchConfig,
        rank: int,
        folder: str,
        open_device: Callable[[int, int], BenchDevice] = CudaDevice,
    ) -> None:
        torch.set_num_threads(1)
        self._config = config
        self._folder = Path(folder)
        self._rank = rank
        self._gpu = open_device(rank, config.world_size)
        self._align_group = self._open_group("align")
        self._gloo = GlooBackend(self._align_group)
        self._backends: dict[str, tuple[Group, Any]] = {}
        self._cases: dict[CaseKey, _Case] = {}
        self._at_size: tuple[int, Inputs, SlotPool] | None = None

    def create(self, name: str) -> Support:
        """Set a backend up; `ok` is the same on every rank, the reason belongs to a rank that cannot."""
        group = self._open_group(name)
        support = self._agree(self._find_support(group, name))
        if not support.ok:
            close_group(group)
            return support
        with self._gpu.use():
            backend, summary = _create(group, name)
            self._backends[name] = (group, backend)
            self._gpu.synchronize()
        is_either = name not in OWN_BACKENDS and hasattr(backend, "all_reduce_out")
        return Support(True, f"{summary}; {_EITHER_STYLE}" if is_either else summary)

    def prepare(self, key: CaseKey) -> Prepared:
        """Check one call, capture the graph, check what it leaves."""
        backend = self._backends[key.backend][1]
        num_elements = key.num_bytes // self._config.itemsize
        inputs, pool = self._open_size(key.num_bytes)
        support = self._agree(backend.can_run(num_elements, inputs.residual.dtype))
        if not support.ok:
            return Prepared(ok=False, reason=support.reason)
        launch = find_candidate(key, self._config.world_size)
        known_fallbacks = dict(getattr(backend, "fallbacks", {}))
        with self._gpu.use():
            tried = [
                self._set_up(key, Operation(make_step(backend, way, inputs.weight), pool, key.op), inputs)
                for way in list_ways(backend, key, launch)
            ]
            self._cases[key] = case = self._faster(tried)
        text = launch_text(launch) if launch else _launch_text(backend, key, inputs, known_fallbacks)
        return Prepared(ok=True, correct=case.correct, num_calls=case.num_calls, launch=text)

    def turn(self, key: CaseKey, num_samples: int) -> list[float]:
        """Microseconds per call, one number per sample."""
        with self._gpu.use():
            return self._time(self._cases[key], num_samples)

    def finish(self, key: CaseKey) -> bool:
        """Check once more and let go of the case."""
        case = self._cases.pop(key)
        with self._gpu.use():
            if case.graph is None:
                return self._check_single(key, case)
            return self._check_graph(key, case)

    def time_empty(self, num_samples: int) -> list[float]:
        """Microseconds per node of a graph of kernels that do nothing: the floor of every time here."""
        with self._gpu.use():
            self._gpu.do_nothing()
            graph = self._gpu.capture(self._gpu.do_nothing, _EMPTY_NODES)
            return self._gpu.time_graph(graph, _EMPTY_NODES, num_samples, lambda: None, self._align)

    def close(self) -> None:
        """Let go of everything; errors of libraries no longer matter."""
        self._cases.clear()
        self._gpu.synchronize()
        for group, backend in self._backends.values():
            with suppress(Exception):
                backend.close()
            close_group(group)
        self._gloo.close()
        close_group(self._align_group)

    def _set_up(self, key: CaseKey, operation: Operation, inputs: Inputs) -> _Case:
        case = _Case(operation, inputs, 1 if key.mode == "eager" else self._graph_calls())
        case.correct = self._check_single(key, case)
        if key.mode == "graph":
            operation.rewind()
            case.graph = self._gpu.capture(operation.call, case.num_calls)
            case.correct &= self._check_graph(key, case)
        return case

    def _faster(self, cases: list[_Case]) -> _Case:
        """The one whose slowest rank is faster, the same on every rank; wrong ones only where nothing else is there."""
        if len(cases) == 1:
            return cases[0]
        medians_us = [statistics.median(self._time(case, _STYLE_SAMPLES)) for case in cases]
        slowest_us = self._gloo.all_gather(torch.tensor(medians_us)).amax(0).tolist()
        all_correct = self._gloo.all_gather(torch.tensor([case.correct for case in cases])).all(0).tolist()
        return min(zip(all_correct, slowest_us, cases, strict=True), key=lambda tried: (not tried[0], tried[1]))[2]

    def _time(self, case: _Case, num_samples: int) -> list[float]:
        if case.graph is None:
            return self._gpu.time_eager(case.operation.call, num_samples, self._refill(case), self._align)
        return self._gpu.time_graph(case.graph, case.num_calls, num_samples, self._refill(case), self._align)

    def _open_group(self, name: str) -> Group:
        rendezvous = (self._folder / f"meet-{name}").as_uri()
        return create_group(self._rank, self._config.world_size, rendezvous, device=self._gpu.device)

    def _find_support(self, group: Group, name: str) -> Support:
        if self._gpu.shared and name not in OWN_BACKENDS:
            return Support(False, f"{self._config.world_size} ranks share fewer GPUs; it needs one per rank")
        if name == AUTO:
            return Support(True)
        return find_gpu_backend(name).find_support(group)

    def _agree(self, support: Support) -> Support:
        all_ok = self._gloo.all_gather(torch.tensor([support.ok])).flatten().tolist()
        if all(all_ok) or not support.ok:
            return support
        return Support(False, f"rank(s) {[rank for rank, ok in enumerate(all_ok) if not ok]} cannot")

    def _open_size(self, num_bytes: int) -> tuple[Inputs, SlotPool]:
        if self._at_size is None or self._at_size[0] != num_bytes:
            self._at_size = None
            config, dtype = self._config, DTYPES[self._config.dtype]
            inputs = make_inputs(config.shape(num_bytes), config.world_size, dtype, self._gpu.device)
            num_slots = self._graph_calls() if self._config.cold_l2 else 1
            self._at_size = (num_bytes, inputs, SlotPool(inputs.residual, num_slots))
            self._gpu.synchronize()  # it was made on another stream than it will be used on
        return self._at_size[1:]

    def _graph_calls(self) -> int:
        config = self._config
        limit = min(config.calls, _CALLS_ON_A_SHARED_GPU) if self._gpu.shared else config.calls
        return count_calls(limit, DTYPES[config.dtype], config.world_size)

    def _refill(self, case: _Case) -> Callable[[], None]:
        """What must come before every sample: the inputs as they were, and where asked for nothing in the L2 cache."""

        def refill() -> None:
            if case.graph is None:
                case.operation.rewind()
            case.operation.pool.fill(case.inputs.integers[self._rank], case.inputs.residual)
            if self._config.cold_l2:
                self._gpu.flush_l2()

        return refill

    def _align(self) -> None:
        self._gloo.all_gather(torch.zeros(1))

    def _check_single(self, key: CaseKey, case: _Case) -> bool:
        operation, inputs = case.operation, case.inputs
        operation.rewind()
        operation.pool.fill(inputs.random[self._rank], inputs.residual)
        operation.call()
        correct = may_be_used(judge(operation, inputs), key.backend, inputs.world_size)
        return self._same_bits([operation.outputs[0], operation.pool.slots[0].residual]) and correct

    def _check_graph(self, key: CaseKey, case: _Case) -> bool:
        assert case.graph is not None
        operation, inputs = case.operation, case.inputs
        operation.pool.fill(inputs.integers[self._rank], inputs.residual)
        case.graph.replay()
        accuracy: Accuracy = "contract" if key.backend in OWN_BACKENDS else "rounded"
        correct = is_chain_right(operation, inputs, case.num_calls, accuracy)
        return self._same_bits([operation.outputs[-1], operation.pool.slots[-1].residual]) and correct

    def _same_bits(self, tensors: list[torch.Tensor]) -> bool:
        """Whether every rank holds these bits. A collective: every rank must come here, whatever it found before."""
        digests = self._gloo.all_gather(torch.tensor([digest(tensors)]))
        return bool((digests == digests[0]).all())


def list_ways(backend: Any, key: CaseKey, launch: Launch | None) -> list[Way]:
    """In place, out of place, or both, of which the faster one counts. Rivals of our own kernels norm their own way."""
    rounds_once = key.backend not in OWN_BACKENDS
    styles = find_styles(backend, key.backend, key.op, separate_norm=key.separate)
    return [Way(key.backend, key.op, launch, key.separate, out_of_place, rounds_once) for out_of_place in styles]


def _create(group: Group, name: str) -> tuple[Any, str]:
    """The backend, and what it is in a few words."""
    if name == AUTO:
        backend, choice = import_module("fastverify.comm.gpu.chooser").choose_gpu(group, AUTO)
        return backend, f"what the chooser picks at each size: {choice.reason}"
    spec = find_gpu_backend(name)
    backend = spec.create(group)
    if name == "nccl" and group.device.type == "cuda":
        _require_server_calls(backend, group.device)
    return backend, spec.summary


def _require_server_calls(backend: Any, device: torch.device) -> None:
    """A setting under which a server cannot start is of no use, however fast its sums are: NCCL_ALGO=Tree, say."""
    failed = next((outcome for outcome in check_server_calls(backend, device) if not outcome.ok), None)
    if failed is not None:
        where = " inside a capture" if failed.captured else ""
        raise UnsupportedError(
            f"a {failed.call}{where}, as servers make it, fails: {failed.error or failed.capture_error}"
        )


def _launch_text(backend: Any, key: CaseKey, inputs: Inputs, known_fallbacks: dict[str, int]) -> str | None:
    """What a backend of ours launched, or why it did something else instead."""
    for reason, count in getattr(backend, "fallbacks", {}).items():
        if count > known_fallbacks.get(reason, 0):
            return f"fell back: {reason}"
    return picked_launch_text(backend, key, inputs.residual.shape[0], inputs.weight.nbytes)
