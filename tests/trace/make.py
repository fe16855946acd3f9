"""Hand-made `TraceData`: each row of work says when it ran and when and from where it was launched. Times in us."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastverify.trace.events import (
    Annotations,
    CollectiveArgs,
    CpuOps,
    Health,
    Kernels,
    Launches,
    TraceData,
    TraceInfo,
)

ALL_REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
ATTENTION = "flash_fwd_kernel"
SAMPLE = "_rejection_kernel"
COPY = "Memcpy HtoD (Pinned -> Device)"


@dataclass(frozen=True)
class Kernel:
    """Device work. Kernels of one `launch_us` on one thread share a launch; None leaves the launch out of the file."""

    name: str
    start_us: float
    dur_us: float
    launch_us: float | None = None
    is_graph: bool = False
    stream: int = 7
    thread: int = 0


@dataclass(frozen=True)
class Mark:
    """An annotation."""

    name: str
    start_us: float
    end_us: float
    thread: int = 0
    on_device: bool = False


def make_trace(kernels: list[Kernel], marks: list[Mark] | None = None, rank: int = 0, world_size: int = 1) -> TraceData:
    """A trace of one rank."""
    names: dict[str, int] = {}

    def name(text: str) -> int:
        return names.setdefault(text, len(names))

    kernels = sorted(kernels, key=lambda kernel: kernel.start_us)
    calls: dict[tuple[float, int, bool], int] = {}
    correlations = []
    for kernel in kernels:
        key = (kernel.launch_us, kernel.thread, kernel.is_graph)
        correlations.append(-1 if kernel.launch_us is None else calls.setdefault(key, len(calls) + 1))
    launches = sorted((at, thread, graph, number) for (at, thread, graph), number in calls.items())
    marks = sorted(marks or [], key=lambda mark: mark.start_us)
    count = len(kernels)
    return TraceData(
        info=TraceInfo(f"rank{rank}.json", rank, "distributedInfo", world_size, device_names=("made",)),
        kernels=Kernels(
            ts_ns=_ns([k.start_us for k in kernels]),
            dur_ns=_ns([k.dur_us for k in kernels]),
            name=_ids([name(k.name) for k in kernels]),
            device=_ids([0] * count),
            stream=_ids([k.stream for k in kernels]),
            correlation=np.array(correlations, dtype=np.int64),
            external_id=np.full(count, -1, dtype=np.int64),
            graph_id=np.full(count, -1, dtype=np.int64),
            num_bytes=np.full(count, -1, dtype=np.int64),
            work=np.array([k.name == COPY for k in kernels], dtype=np.uint8),
        ),
        launches=Launches(
            ts_ns=_ns([at for at, _, _, _ in launches]),
            dur_ns=_ns([1.0 for _ in launches]),
            name=_ids([name("cudaGraphLaunch" if graph else "cudaLaunchKernel") for _, _, graph, _ in launches]),
            thread=_ids([thread for _, thread, _, _ in launches]),
            correlation=np.array([number for _, _, _, number in launches], dtype=np.int64),
        ),
        annotations=Annotations(
            ts_ns=_ns([m.start_us for m in marks]),
            dur_ns=_ns([m.end_us - m.start_us for m in marks]),
            name=_ids([name(m.name) for m in marks]),
            thread=_ids([m.thread for m in marks]),
            on_device=np.array([m.on_device for m in marks], dtype=bool),
        ),
        cpu_ops=CpuOps(_ns([]), _ns([]), _ids([]), _ids([]), _ns([])),
        collective_args=CollectiveArgs(
            np.zeros(0, np.uint8), *(_ids([]) for _ in range(6)), *(np.zeros(0, np.int64) for _ in range(3))
        ),
        names=list(names),
        threads=[("1", str(i)) for i in range(4)],
        health=Health(),
    )


def layers(num_layers: int, start_us: float, launch_us: float, *, is_graph: bool = True) -> list[Kernel]:
    """A tensor-parallel forward without head: per layer attention, all-reduce, GEMM, all-reduce, 1 us each."""
    kinds = [ATTENTION, ALL_REDUCE, GEMM, ALL_REDUCE] * num_layers
    return [Kernel(kind, start_us + i, 1.0, launch_us, is_graph) for i, kind in enumerate(kinds)]


def _ns(values_us: list[float]) -> np.ndarray:
    return np.round(np.array(values_us, dtype=np.float64) * 1000).astype(np.int64)


def _ids(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)
