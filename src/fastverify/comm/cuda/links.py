"""Measures the links of all GPUs of this process: flags, stores and loads, over peer memory and over host memory.

Kernels do the work, as in an all-reduce, never the copy engines. What cannot be measured becomes a row with a reason.
Waits of kernels are bounded by their clock. It needs the GPUs for itself: other traffic is in the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from fastverify.comm.cuda import numa
from fastverify.comm.cuda.devices import UNKNOWN_NODE, read_numa_node
from fastverify.comm.cuda.driver_calls import DriverError, call_driver, open_driver
from fastverify.comm.cuda.link_gpus import (
    MAX_GPUS,
    REGION_BYTES,
    Flow,
    FlowRates,
    HostMemory,
    LinkGpu,
    PingSide,
    count_gpus,
    enable_access,
    keep_busy,
    time_flag_us,
    time_flows,
)
from fastverify.comm.cuda.link_report import (
    GpuLinks,
    LinkReport,
    LinkRow,
    PairAccess,
    Pattern,
    Quantity,
    islands,
)
from fastverify.comm.cuda.link_state import PcieReading, find_root_port, read_nvlinks, read_pcie
from fastverify.errors import FastverifyError, UnsupportedError

ALL = -1
CROSSING = "gpus behind other ports"
_KERNELS = {Quantity.STORE: "fastverify_store_stream", Quantity.LOAD: "fastverify_load_stream"}
_FLAGS = {Quantity.FLAG: False, Quantity.RELEASE_FLAG: True}
_FLAG_DISTANCE = 256
_CLEARED_BYTES = 4096
_RESULT_BYTES = 64 << 10
# Longer than nvidia-smi takes to look at eight GPUs.
_BUSY_S = 2.0
_NOTHING = PcieReading(None, None)


def measure_links(report_progress: Callable[[str], None] = lambda _: None) -> LinkReport:
    """Everything. Takes some seconds per pair of GPUs.

    Raises: EnvironmentMissingError without a usable GPU.
    """
    with _open_gpus() as gpus, ExitStack() as stack:
        nodes = [HostMemory(MAX_GPUS * REGION_BYTES, node) for node in range(numa.num_nodes())]
        results = HostMemory(_RESULT_BYTES, UNKNOWN_NODE)
        for memory in (*nodes, results):
            stack.callback(memory.close)
        idle = read_pcie()
        report_progress("PCIe under load")
        busy = _read_busy_pcie(gpus, nodes[0])
        nvlinks = read_nvlinks()
        facts = tuple(_describe(gpu, idle, busy, nvlinks) for gpu in gpus)
        pairs = tuple(_read_access(a, b) for a in gpus for b in gpus if a is not b)
        rows: list[LinkRow] = []
        for gpu in gpus:
            report_progress(f"GPU {gpu.index} and host memory")
            rows += [*_time_own_flags(gpu, nodes, results), *_time_host(gpu, nodes)]
        reachable = _enable_all(gpus)
        for a, b in _couples(gpus):
            report_progress(f"GPU {a.index} and GPU {b.index}")
            rows += [*_time_host_flags(a, b, nodes, results), *_time_peers(a, b, reachable, results)]
        report_progress("all GPUs at once")
        rows += _time_all(gpus, nodes, islands(facts), reachable)
        return LinkReport(facts, pairs, tuple(rows), len(nodes), _cuda_version())


# ---- GPUs ----


@contextmanager
def _open_gpus() -> Iterator[list[LinkGpu]]:
    num_gpus = count_gpus()
    if num_gpus == 0:
        raise UnsupportedError("links are measured on NVIDIA GPUs, and the driver shows none to this process.")
    with ExitStack() as stack:
        # torch takes its current device from the context, so the caller's comes back.
        stack.callback(call_driver, "cuCtxSetCurrent", call_driver("cuCtxGetCurrent"))
        gpus = []
        for index in range(num_gpus):
            gpus.append(LinkGpu(index))
            stack.callback(gpus[-1].close)
        yield gpus


def _describe(
    gpu: LinkGpu,
    idle: dict[str, PcieReading],
    busy: dict[str, PcieReading],
    nvlinks: dict[str, tuple[int, float]],
) -> GpuLinks:
    address = gpu.bus_address
    node = read_numa_node(address)
    num_nvlinks, nvlink_gb_per_s = nvlinks.get(gpu.uuid, (0, 0.0))
    return GpuLinks(
        index=gpu.index,
        name=gpu.name,
        bus_address=address,
        numa_node=None if node == UNKNOWN_NODE else node,
        root_port=find_root_port(address),
        host_native_atomics=bool(gpu.attribute("HOST_NATIVE_ATOMIC_SUPPORTED")),
        pcie_idle=idle.get(address, _NOTHING).now,
        pcie_busy=busy.get(address, _NOTHING).now,
        pcie_max=busy.get(address, _NOTHING).best,
        num_nvlinks=num_nvlinks,
        nvlink_gb_per_s=nvlink_gb_per_s,
    )


def _read_busy_pcie(gpus: Sequence[LinkGpu], memory: HostMemory) -> dict[str, PcieReading]:
    keep_busy([_host_flow(gpu, memory, Quantity.STORE) for gpu in gpus], _BUSY_S)
    readings = read_pcie()
    for gpu in gpus:
        gpu.synchronize()
    return readings


def _read_access(source: LinkGpu, target: LinkGpu) -> PairAccess:
    attributes = open_driver().CUdevice_P2PAttribute

    def read(name: str) -> int:
        attribute = getattr(attributes, f"CU_DEVICE_P2P_ATTRIBUTE_{name}")
        return int(call_driver("cuDeviceGetP2PAttribute", attribute, source.device, target.device))

    can_access = bool(call_driver("cuDeviceCanAccessPeer", source.device, target.device))
    if not can_access:
        return PairAccess(source.index, target.index, False, -1, False)
    return PairAccess(source.index, target.index, True, read("PERFORMANCE_RANK"), bool(read("NATIVE_ATOMIC_SUPPORTED")))


def _enable_all(gpus: Sequence[LinkGpu]) -> dict[tuple[int, int], str]:
    """By pair: why the first cannot use memory of the second, an empty text where it can."""
    problems = {}
    for source in gpus:
        for target in gpus:
            if source is not target:
                try:
                    enable_access(source, target)
                    problems[source.index, target.index] = ""
                except UnsupportedError as error:
                    problems[source.index, target.index] = str(error)
    return problems


def _couples(gpus: Sequence[LinkGpu]) -> list[tuple[LinkGpu, LinkGpu]]:
    return [(a, b) for a in gpus for b in gpus if a.index < b.index]


def _cuda_version() -> str:
    version = int(call_driver("cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


# ---- flags ----


def _time_own_flags(gpu: LinkGpu, nodes: Sequence[HostMemory], results: HostMemory) -> Iterator[LinkRow]:
    """Between two kernels on one GPU: through its own memory, that is without a link, and through host memory."""
    yield from _flag_rows(_sides(gpu, gpu, gpu.flags, gpu.flags), "own memory", results, gpu.clear_flags)
    for memory in nodes:
        address = memory.device_address(gpu)
        sides = _sides(gpu, gpu, address, address)
        yield from _flag_rows(sides, f"host node {memory.node}", results, partial(memory.clear, _CLEARED_BYTES))


def _time_host_flags(a: LinkGpu, b: LinkGpu, nodes: Sequence[HostMemory], results: HostMemory) -> Iterator[LinkRow]:
    for memory in nodes:
        sides = _sides(a, b, memory.device_address(a), memory.device_address(b))
        target = f"host node {memory.node} to gpu {b.index}"
        yield from _flag_rows(sides, target, results, partial(memory.clear, _CLEARED_BYTES))


def _sides(a: LinkGpu, b: LinkGpu, seen_by_a: int, seen_by_b: int) -> tuple[PingSide, PingSide]:
    """Two words in one piece of memory: `a` polls the first, `b` the second."""
    return (
        PingSide(a, seen_by_a, seen_by_a + _FLAG_DISTANCE),
        PingSide(b, seen_by_b + _FLAG_DISTANCE, seen_by_b, stream=1),
    )


def _flag_rows(
    sides: tuple[PingSide, PingSide], target: str, results: HostMemory, clear: Callable[[], object]
) -> Iterator[LinkRow]:
    for quantity, release in _FLAGS.items():
        value, reason = None, ""
        try:
            clear()
            value = time_flag_us(*sides, results, release=release)
        except FastverifyError as error:
            reason = str(error)
        yield LinkRow(quantity, sides[0].gpu.index, target, Pattern.ALONE, value, reason)


# ---- streams ----


def _host_flow(gpu: LinkGpu, memory: HostMemory, quantity: Quantity) -> Flow:
    return Flow(gpu, _KERNELS[quantity], (memory.device_address(gpu) + gpu.index * REGION_BYTES,))


def _peer_flow(gpu: LinkGpu, targets: Sequence[LinkGpu], quantity: Quantity) -> Flow:
    return Flow(gpu, _KERNELS[quantity], tuple(target.region_of(gpu.index) for target in targets))


def _time_host(gpu: LinkGpu, nodes: Sequence[HostMemory]) -> Iterator[LinkRow]:
    """Stores and loads alone, then both at once, which share the link in opposite directions."""
    for memory in nodes:
        target = f"host node {memory.node}"
        store, load = _host_flow(gpu, memory, Quantity.STORE), _host_flow(gpu, memory, Quantity.LOAD)
        yield _stream_row(Quantity.STORE, gpu.index, target, Pattern.ALONE, [store])
        yield _stream_row(Quantity.LOAD, gpu.index, target, Pattern.ALONE, [load])
        elsewhere = memory.device_address(gpu) + (gpu.index + 1) % MAX_GPUS * REGION_BYTES
        rates, reason = _try_flows([store, replace(load, targets=(elsewhere,), stream=1)])
        for place, quantity in enumerate(_KERNELS):
            value = rates.each[place] if rates else None
            yield LinkRow(quantity, gpu.index, target, Pattern.BOTH_WAYS, value, reason)


def _time_peers(a: LinkGpu, b: LinkGpu, problems: dict[tuple[int, int], str], results: HostMemory) -> Iterator[LinkRow]:
    if problem := problems[a.index, b.index] or problems[b.index, a.index]:
        for quantity in Quantity:
            yield LinkRow(quantity, a.index, f"gpu {b.index}", reason=problem)
        return

    def clear() -> None:
        a.clear_flags()
        b.clear_flags()

    sides = (PingSide(a, a.flags, b.flags), PingSide(b, b.flags, a.flags))
    yield from _flag_rows(sides, f"gpu {b.index}", results, clear)
    for quantity in _KERNELS:
        there, back = _peer_flow(a, [b], quantity), _peer_flow(b, [a], quantity)
        yield _stream_row(quantity, a.index, f"gpu {b.index}", Pattern.ALONE, [there])
        yield _stream_row(quantity, b.index, f"gpu {a.index}", Pattern.ALONE, [back])
        rates, reason = _try_flows([there, back])
        value = rates.together / 2 if rates else None
        yield LinkRow(quantity, a.index, f"gpu {b.index}", Pattern.BOTH_WAYS, value, reason)


def _time_all(
    gpus: Sequence[LinkGpu],
    nodes: Sequence[HostMemory],
    groups: list[list[int]],
    problems: dict[tuple[int, int], str],
) -> Iterator[LinkRow]:
    for memory in nodes:
        for quantity in _KERNELS:
            flows = [_host_flow(gpu, memory, quantity) for gpu in gpus]
            yield _stream_row(quantity, ALL, f"host node {memory.node}", Pattern.ALL_AT_ONCE, flows)
    if len(gpus) == 1:
        reason = "there is one GPU, so there is no peer"
        yield LinkRow(Quantity.STORE, ALL, "all gpus", Pattern.ALL_AT_ONCE, reason=reason)
        return
    problem = next((problem for problem in problems.values() if problem), "")
    for quantity in _KERNELS:
        flows = [_peer_flow(gpu, [peer for peer in gpus if peer is not gpu], quantity) for gpu in gpus]
        yield _stream_row(quantity, ALL, "all gpus", Pattern.ALL_AT_ONCE, flows, problem)
    if len(groups) > 1:
        others = {index: [g for g in gpus if g.index not in group] for group in groups for index in group}
        for quantity in _KERNELS:
            flows = [_peer_flow(gpu, others[gpu.index], quantity) for gpu in gpus]
            yield _stream_row(quantity, ALL, CROSSING, Pattern.ALL_AT_ONCE, flows, problem)


def _stream_row(
    quantity: Quantity, source: int, target: str, pattern: Pattern, flows: list[Flow], problem: str = ""
) -> LinkRow:
    rates, reason = (None, problem) if problem else _try_flows(flows)
    return LinkRow(quantity, source, target, pattern, rates.together if rates else None, reason)


def _try_flows(flows: list[Flow]) -> tuple[FlowRates | None, str]:
    try:
        return time_flows(flows), ""
    except DriverError as error:
        return None, str(error)
