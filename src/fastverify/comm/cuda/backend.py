"""Opens our GPU all-reduce in a group: whether it can run, its memory, its kernels, the probe of its links.

Every rank opens it together. A step that fails on one rank raises the same error on all of them, and what was opened is
closed. Names: push, push_two_shot and islands write into the peers' GPU memory, host and host_two_shot go through
pinned host memory; `create_fabric_backend` opens one of the two kinds of memory with every algorithm.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.cuda import host, push
from fastverify.comm.cuda.agreement import agreed
from fastverify.comm.cuda.compile import nvrtc_version
from fastverify.comm.cuda.devices import UNKNOWN_NODE, find_numa_node, find_unreachable, largest_share
from fastverify.comm.cuda.driver_calls import call_driver, open_driver
from fastverify.comm.cuda.host_memory import HostMemory, find_room, shared_bytes
from fastverify.comm.cuda.ipc import PeerMemory
from fastverify.comm.cuda.kernels import KernelSet, kernel_set
from fastverify.comm.cuda.launch import ISLAND_WORLD_SIZES, Algorithm, Protocol
from fastverify.comm.cuda.probe import ProbeCase, ProbeResult, probe
from fastverify.comm.cuda.probe_cases import avoid_in_tables, list_probe_cases
from fastverify.comm.cuda.process_backend import CudaBackend
from fastverify.comm.cuda.rank import CudaRank, Fabric
from fastverify.comm.cuda.watchdog import Watch, find_spin_bound
from fastverify.comm.cuda.workspace import Layout
from fastverify.comm.group import Group
from fastverify.errors import ConfigError, EnvironmentMissingError, FastverifyError, UnsupportedError

logger = logging.getLogger(__name__)

_PROBE_ROUNDS = 50
# Kernels of ranks that share a GPU take turns of about two milliseconds.
_PROBE_ROUNDS_SHARED = 3
_PROBE_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class _Kind:
    """What a name opens: the kind of memory, and the algorithms, the first of which the tables start with."""

    fabric: str
    algorithms: tuple[Algorithm, ...]


_KINDS = {
    "push": _Kind("push", (Algorithm.ONE_SHOT,)),
    "push_two_shot": _Kind("push", (Algorithm.TWO_SHOT,)),
    "islands": _Kind("push", (Algorithm.ISLANDS,)),
    "host": _Kind("host", (Algorithm.ONE_SHOT,)),
    "host_two_shot": _Kind("host", (Algorithm.TWO_SHOT,)),
}
_FABRICS = ("push", "host")
# What the start-up probe refused in this process, by kind of memory and GPUs.
_refused: dict[tuple[str, tuple[str, ...]], str] = {}


def find_support(group: Group, name: str) -> Support:
    """Whether this rank could open the backend; looks at this rank only and never raises."""
    try:
        reason = _find_obstacle(group, _find_kind(name))
    except (FastverifyError, RuntimeError) as error:
        reason = str(error).rstrip(".")
    return Support(ok=False, reason=reason) if reason else SUPPORTED


def create(group: Group, name: str) -> CudaBackend:
    """Open the backend; every rank calls this together. Raises EnvironmentMissingError where it cannot run."""
    return _create(group, name, _find_kind(name))


def create_fabric_backend(group: Group, fabric: str) -> CudaBackend:
    """Push or host with every algorithm that the number of ranks allows: what the chooser tunes."""
    if fabric not in _FABRICS:
        raise ConfigError(f"the memory of an all-reduce is one of {', '.join(_FABRICS)}, got {fabric!r}.")
    algorithms = _make_layout(fabric, group.world_size).algorithms(Protocol.SENTINEL)
    return _create(group, fabric, _Kind(fabric, algorithms))


def _find_kind(name: str) -> _Kind:
    if name not in _KINDS:
        raise ConfigError(f"a backend of our own GPU kernels is one of {', '.join(_KINDS)}, got {name!r}.")
    return _KINDS[name]


def _find_obstacle(group: Group, kind: _Kind) -> str:
    """Why it cannot run, or nothing."""
    if group.device.type != "cuda" or not torch.cuda.is_available():
        return f"it needs ranks on NVIDIA GPUs, this one is on {group.device}"
    if not 2 <= group.world_size <= 8:
        return f"it serves 2 to 8 ranks, the group has {group.world_size}"
    if Algorithm.ISLANDS in kind.algorithms[:1] and group.world_size not in ISLAND_WORLD_SIZES:
        return f"islands are two halves of 4 or 8 ranks, the group has {group.world_size}"
    major, minor = torch.cuda.get_device_capability(group.device)
    if major < 8:
        return f"it needs SM80 or later, this GPU has SM{major}{minor}"
    open_driver()
    nvrtc_version()
    if (kind.fabric, group.gpus) in _refused:
        return f"the start-up probe refused it: {_refused[kind.fabric, group.gpus]}"
    return _find_memory_obstacle(group, kind)


def _find_memory_obstacle(group: Group, kind: _Kind) -> str:
    if kind.fabric == "host":
        return find_room(shared_bytes(_make_layout("host", group.world_size).num_bytes, group.world_size)).reason
    unreachable = find_unreachable(group.rank, group.gpus)
    if unreachable:
        return (
            f"the GPU of rank {group.rank} cannot reach the memory of rank(s) {', '.join(map(str, unreachable))} "
            f"(see `nvidia-smi topo -p2p w`); host can"
        )
    return ""


def _create(group: Group, name: str, kind: _Kind) -> CudaBackend:
    with agreed(group, f"opening the all-reduce {name}"):
        support = find_support(group, name)
        if not support.ok:
            raise EnvironmentMissingError(f"the all-reduce {name} cannot run: {support.reason}.")
    # A stream of its own: the stream guard then finds it idle, whatever else the caller's stream holds.
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(group.device))
        stack.enter_context(torch.cuda.stream(torch.cuda.Stream(group.device)))  # type: ignore[no-untyped-call]
        return _open(group, name, kind)


def _open(group: Group, name: str, kind: _Kind) -> CudaBackend:
    # Binds the device's context to this thread, which the driver's calls need.
    torch.zeros(1, device=group.device)
    layout = _make_layout(kind.fabric, group.world_size)
    fabrics = [_make_fabric(kind.fabric, algorithm, group.world_size) for algorithm in kind.algorithms]
    cases = list_probe_cases([fabric.rules for fabric in fabrics], layout)
    memory = _open_memory(group, kind.fabric, layout)
    rank: CudaRank | None = None
    try:
        with agreed(group, f"loading the kernels of {name}"):
            kernels = kernel_set(group.device, group.world_size)
            spin_bound = find_spin_bound(group.timeout_s, group.device)
            rank = CudaRank(group.rank, memory.addresses, layout, kernels, fabrics[0], spin_bound_cycles=spin_bound)
            _load_kernels(kernels, layout, cases, fabrics[0])
        assert rank is not None
        probed = probe(group, rank, cases, _num_rounds(group), dtype=_PROBE_DTYPE)
        _obey(probed, group, rank, fabrics[0])
        return CudaBackend(name, group, kind.fabric, rank, memory, Watch(group, kind.fabric, rank), probed)
    except BaseException:
        if rank is not None:
            rank.abort()
        torch.cuda.synchronize(group.device)
        memory.close()
        raise


def _make_layout(fabric: str, world_size: int) -> Layout:
    return push.push_layout(world_size) if fabric == "push" else host.host_layout(world_size)


def _make_fabric(fabric: str, algorithm: Algorithm, world_size: int) -> Fabric:
    return push.push_fabric(algorithm) if fabric == "push" else host.host_fabric(algorithm, world_size)


def _open_memory(group: Group, fabric: str, layout: Layout) -> PeerMemory | HostMemory:
    assert group.store is not None
    # Every rank counts its own openings, which all ranks make in the same order.
    key = f"{fabric}/{group.store.add(f'cuda/opened/{group.rank}', 1)}"
    if fabric == "push":
        return PeerMemory(group, layout.num_bytes, lambda address: _fill(address, layout), key=key)
    node = UNKNOWN_NODE
    with agreed(group, "finding the NUMA node of each GPU"):
        node = find_numa_node(group.device)
    return HostMemory(group, layout.num_bytes, node, lambda inbox: push.fill_inbox(inbox, layout), key=key)


def _fill(address: int, layout: Layout) -> None:
    """What an inbox in GPU memory must hold before the first call."""
    for region in layout.regions.values():
        if region.num_bytes:
            call_driver("cuMemsetD8", address + region.offset, region.fill, region.num_bytes)
    torch.cuda.synchronize()


def _load_kernels(kernels: KernelSet, layout: Layout, cases: Sequence[ProbeCase], fabric: Fabric) -> None:
    """Compile and load what the probe and the first gathers need, so that no rank waits for another's compiler."""
    for launch in (case.launch for case in cases):
        kernels.all_reduce(_PROBE_DTYPE, launch, outbox=layout.uses_outbox(launch.protocol))
    for launch in (rule.launch for rule in fabric.gather_rules):
        kernels.all_gather(launch, outbox=layout.uses_outbox(launch.protocol))


def _num_rounds(group: Group) -> int:
    return _PROBE_ROUNDS if largest_share(group.gpus) == 1 else _PROBE_ROUNDS_SHARED


def _obey(probed: ProbeResult, group: Group, rank: CudaRank, fabric: Fabric) -> None:
    """Use nothing that the probe saw fail; where nothing is left, refuse this memory for as long as the process lives.

    The result is the same on every rank, so all ranks do the same.
    """
    logger.info("the start-up probe of %s memory took %.2f s", fabric.name, probed.elapsed_s)
    if not probed.faults:
        return
    why = probed.explain(fabric.name, group.gpus)
    try:
        if probed.is_hung:
            raise UnsupportedError("a link delivers nothing.")
        rank.set_rules(*avoid_in_tables(fabric, probed.broken_protocols))
    except UnsupportedError as error:
        _refused[fabric.name, group.gpus] = why
        raise EnvironmentMissingError(f"the start-up probe refused {fabric.name} memory: {why}.") from error
    names = ", ".join(sorted(protocol.name.lower() for protocol in probed.broken_protocols))
    logger.warning("%s memory is used without the protocol(s) %s: %s", fabric.name, names, why)
