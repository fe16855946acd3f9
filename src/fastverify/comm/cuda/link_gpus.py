"""GPUs and host memory as the link measurements use them: plain driver memory, one process, peer access enabled.

Memory comes from the driver and not from torch, whose pools may hand out memory that peers cannot map. Every GPU has a
region per source, so flows never write the same bytes. It knows how to run one measurement, not which ones to run.
Source: CUDA driver API, https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any
from uuid import UUID

from fastverify.comm.cuda import numa
from fastverify.comm.cuda.compile import KernelSpec, load_cubin
from fastverify.comm.cuda.driver import load_kernels
from fastverify.comm.cuda.driver_calls import DriverError, call_driver, open_driver
from fastverify.errors import CommTimeoutError, EnvironmentMissingError, UnsupportedError

SPEC = KernelSpec("links.cu", (("FV_CLUSTER", 1),))
FUNCTIONS = ("fastverify_ping_pong", "fastverify_store_stream", "fastverify_load_stream")
MAX_ROUNDS = 4096  # must match MAX_ROUNDS in sources/links.cu
_DONE = 1  # must match sources/links.cu
_LINE_BYTES = 16
REGION_BYTES = 16 << 20
_FLAG_BYTES = 4096
MAX_GPUS = 8
# Enough bytes in flight for any present link, and the number of blocks that our all-reduces use.
_BLOCKS, _THREADS = 64, 512
_ROUNDS = 2000
_WARM_ROUNDS = 100
# About a second on present GPUs.
_SPIN_BOUND_CYCLES = 2_000_000_000
# Long against the microseconds by which launches on several GPUs start apart.
_FLOW_MS = 10.0
_SAMPLES = 3
_BYTES_PER_MS = 1e6  # of 1 GB/s
_ADDRESS_CHARS = 64


class _PingCall(ctypes.Structure):
    """Must match PingCall in sources/links.cu."""

    _fields_ = [
        ("own_flag", ctypes.c_uint64),
        ("peer_flag", ctypes.c_uint64),
        ("result", ctypes.c_uint64),
        ("spin_bound", ctypes.c_uint64),
        ("rounds", ctypes.c_uint32),
        ("starts", ctypes.c_uint32),
        ("release", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    ]


class _PingResult(ctypes.Structure):
    """Must match PingResult in sources/links.cu."""

    _fields_ = [
        ("status", ctypes.c_uint32),
        ("rounds_done", ctypes.c_uint32),
        ("total_cycles", ctypes.c_uint64),
        ("total_ns", ctypes.c_uint64),
        ("trip_cycles", ctypes.c_uint32 * MAX_ROUNDS),
    ]


class _StreamCall(ctypes.Structure):
    """Must match StreamCall in sources/links.cu."""

    _fields_ = [
        ("targets", ctypes.c_uint64 * MAX_GPUS),
        ("sink", ctypes.c_uint64),
        ("lines_per_target", ctypes.c_uint64),
        ("num_targets", ctypes.c_uint32),
        ("repeats", ctypes.c_uint32),
    ]


def count_gpus() -> int:
    """GPUs that this process sees, at most MAX_GPUS. Raises EnvironmentMissingError where there is no driver."""
    try:
        call_driver("cuInit", 0)
        return min(MAX_GPUS, int(call_driver("cuDeviceGetCount")))
    except (DriverError, RuntimeError) as error:
        raise EnvironmentMissingError(
            f"links are measured on NVIDIA GPUs, and there is no usable one: {error}"
        ) from error


class LinkGpu:
    """One GPU with its kernels, two streams, and memory that its peers write."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = call_driver("cuDeviceGet", index)
        self.context = call_driver("cuDevicePrimaryCtxRetain", self.device)
        self.activate()
        self._kernels = load_kernels(load_cubin(SPEC, self._architecture()), FUNCTIONS)
        self.streams = [call_driver("cuStreamCreate", open_driver().CUstream_flags.CU_STREAM_NON_BLOCKING.value)]
        self.streams.append(call_driver("cuStreamCreate", open_driver().CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        self._memory_bytes = MAX_GPUS * REGION_BYTES + _FLAG_BYTES
        self.memory = int(call_driver("cuMemAlloc", self._memory_bytes))
        call_driver("cuMemsetD8", self.memory, 0, self._memory_bytes)
        self.synchronize()

    @property
    def name(self) -> str:
        """As the driver calls it."""
        return _text(call_driver("cuDeviceGetName", _ADDRESS_CHARS, self.device))

    @property
    def bus_address(self) -> str:
        """In lower case, with a domain of four digits."""
        return _text(call_driver("cuDeviceGetPCIBusId", _ADDRESS_CHARS, self.device)).lower()

    @property
    def uuid(self) -> str:
        """As nvidia-smi writes it."""
        return f"GPU-{UUID(bytes=bytes(call_driver('cuDeviceGetUuid', self.device).bytes))}"

    @property
    def flags(self) -> int:
        """Address of the words for ping-pong."""
        return self.memory + MAX_GPUS * REGION_BYTES

    def region_of(self, source: int) -> int:
        """Where GPU `source` writes."""
        return self.memory + source * REGION_BYTES

    def attribute(self, name: str) -> int:
        """A device attribute, by the end of its name in the driver."""
        number = getattr(open_driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call_driver("cuDeviceGetAttribute", number, self.device))

    def activate(self) -> None:
        """Calls of this thread go to this GPU from now on."""
        call_driver("cuCtxSetCurrent", self.context)

    def synchronize(self) -> None:
        """Wait for everything on this GPU. It is the current one afterwards."""
        self.activate()
        call_driver("cuCtxSynchronize")

    def clear_flags(self) -> None:
        """Zero the words for ping-pong."""
        self.activate()
        call_driver("cuMemsetD8", self.flags, 0, _FLAG_BYTES)
        self.synchronize()

    def start(self, name: str, blocks: int, threads: int, call: ctypes.Structure, stream: int = 0) -> None:
        """Launch on one of the two streams. It is the current GPU afterwards."""
        self.activate()
        self._kernels[name].launch(blocks, threads, int(self.streams[stream]), call)

    def close(self) -> None:
        """Free the memory and let go of the context. Calling twice is harmless."""
        if self.memory:
            self.synchronize()
            call_driver("cuMemFree", self.memory)
            for stream in self.streams:
                call_driver("cuStreamDestroy", stream)
            self.memory = 0
            call_driver("cuDevicePrimaryCtxRelease", self.device)

    def _architecture(self) -> str:
        return f"sm_{self.attribute('COMPUTE_CAPABILITY_MAJOR')}{self.attribute('COMPUTE_CAPABILITY_MINOR')}"


class HostMemory:
    """Pinned pages, on one NUMA node where the system allows it, that every GPU maps."""

    def __init__(self, num_bytes: int, node: int) -> None:
        self.node = node
        self._mapping = mmap.mmap(-1, num_bytes)
        self._view = ctypes.c_char.from_buffer(self._mapping)
        self.address = ctypes.addressof(self._view)
        self._is_registered = False
        self.placement = numa.place(self.address, num_bytes, node)
        self.clear(num_bytes)
        driver = open_driver()
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        call_driver("cuMemHostRegister", self.address, num_bytes, flags)
        self._is_registered = True

    def device_address(self, gpu: LinkGpu) -> int:
        """How a GPU addresses it. It is the current one afterwards."""
        gpu.activate()
        return int(call_driver("cuMemHostGetDevicePointer", self.address, 0))

    def clear(self, num_bytes: int) -> None:
        """Zero the first bytes, which also gives them pages."""
        ctypes.memset(self.address, 0, num_bytes)

    def close(self) -> None:
        """Unpin and unmap. Calling twice is harmless."""
        if self._is_registered:
            self._is_registered = False
            call_driver("cuMemHostUnregister", self.address)
            del self._view
            self._mapping.close()


def enable_access(source: LinkGpu, target: LinkGpu) -> None:
    """Kernels of `source` may use memory of `target`. Raises UnsupportedError where the driver refuses."""
    source.activate()
    try:
        call_driver("cuCtxEnablePeerAccess", target.context, 0)
    except DriverError as error:
        if error.status != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
            raise UnsupportedError(f"GPU {source.index} cannot use memory of GPU {target.index}: {error}") from error


@dataclass(frozen=True)
class PingSide:
    """One end of a ping-pong: the word it polls, and the word of the other side as it addresses it."""

    gpu: LinkGpu
    own_flag: int
    peer_flag: int
    stream: int = 0


def time_flag_us(starter: PingSide, answerer: PingSide, results: HostMemory, *, release: bool) -> float:
    """One way, half the median round trip. Flags must be zero. Raises CommTimeoutError where no flag comes through."""
    size = ctypes.sizeof(_PingResult)
    results.clear(2 * size)
    for place, side in enumerate((answerer, starter)):
        call = _PingCall()
        call.own_flag, call.peer_flag = side.own_flag, side.peer_flag
        call.result = results.device_address(side.gpu) + place * size
        call.spin_bound, call.rounds = _SPIN_BOUND_CYCLES, _ROUNDS
        call.starts, call.release = int(side is starter), int(release)
        side.gpu.start("fastverify_ping_pong", 1, 1, call, side.stream)
    answerer.gpu.synchronize()
    starter.gpu.synchronize()
    result = _PingResult.from_address(results.address + size)
    if result.status != _DONE:
        raise CommTimeoutError(
            f"flags must go both ways between GPU {starter.gpu.index} and GPU {answerer.gpu.index}, but after "
            f"{result.rounds_done} rounds none came for a second. Look at IOMMU and ACS settings."
        )
    return trip_us(result.trip_cycles[:_ROUNDS], result.total_cycles, result.total_ns) / 2


def trip_us(trip_cycles: Sequence[int], total_cycles: int, total_ns: int) -> float:
    """Median round trip; the whole run tells how long a clock cycle is."""
    return median(trip_cycles[_WARM_ROUNDS:]) * total_ns / total_cycles / 1000


@dataclass(frozen=True)
class Flow:
    """Stores or loads of one GPU to or from up to eight targets, as it addresses them."""

    gpu: LinkGpu
    kernel: str
    targets: tuple[int, ...]
    stream: int = 0
    region_bytes: int = REGION_BYTES


@dataclass(frozen=True)
class FlowRates:
    """GB/s of flows that ran at once: `each` over its own time, `together` all bytes over the time of the slowest."""

    each: tuple[float, ...]
    together: float


def time_flows(flows: Sequence[Flow]) -> FlowRates:
    """All flows at once, median of three runs of the slowest flow's time."""
    slowest_ms = max(_run(flows, 1))  # also wakes the links
    repeats = max(1, min(10_000, round(_FLOW_MS / max(slowest_ms, 1e-3))))
    runs = sorted((_run(flows, repeats) for _ in range(_SAMPLES)), key=max)
    return to_rates([len(flow.targets) * flow.region_bytes * repeats for flow in flows], runs[_SAMPLES // 2])


def keep_busy(flows: Sequence[Flow], seconds: float) -> None:
    """Start all flows for about this long, without waiting for their end."""
    pass_ms = max(_run(flows, 1))
    for _ in range(round(1000 * seconds / _FLOW_MS)):
        for flow in flows:
            _start_flow(flow, max(1, round(_FLOW_MS / pass_ms)))


def to_rates(num_bytes: Sequence[int], times_ms: Sequence[float]) -> FlowRates:
    """Bytes and milliseconds of flows that started together."""
    each = tuple(size / ms / _BYTES_PER_MS for size, ms in zip(num_bytes, times_ms, strict=True))
    return FlowRates(each, sum(num_bytes) / max(times_ms) / _BYTES_PER_MS)


def _start_flow(flow: Flow, repeats: int) -> None:
    call = _StreamCall()
    for place, target in enumerate(flow.targets):
        call.targets[place] = target
    call.num_targets, call.repeats = len(flow.targets), repeats
    call.lines_per_target = flow.region_bytes // _LINE_BYTES
    call.sink = flow.gpu.flags
    blocks = _BLOCKS // len(flow.targets) * len(flow.targets)
    flow.gpu.start(flow.kernel, blocks, _THREADS, call, flow.stream)


def _run(flows: Sequence[Flow], repeats: int) -> list[float]:
    """Milliseconds of each."""
    events: list[tuple[Any, Any]] = []
    for flow in flows:
        flow.gpu.activate()
        events.append((call_driver("cuEventCreate", 0), call_driver("cuEventCreate", 0)))
    for flow, (begin, end) in zip(flows, events, strict=True):
        flow.gpu.activate()
        call_driver("cuEventRecord", begin, flow.gpu.streams[flow.stream])
        _start_flow(flow, repeats)
        call_driver("cuEventRecord", end, flow.gpu.streams[flow.stream])
    times = []
    for flow, (begin, end) in zip(flows, events, strict=True):
        flow.gpu.activate()
        call_driver("cuEventSynchronize", end)
        times.append(float(call_driver("cuEventElapsedTime", begin, end)))
        call_driver("cuEventDestroy", begin)
        call_driver("cuEventDestroy", end)
    return times


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode()
