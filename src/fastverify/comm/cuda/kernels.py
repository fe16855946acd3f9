"""The kernels of one GPU: which function for which dtype, ranks and launch, compiled and loaded on first use."""

from __future__ import annotations

from functools import cache

import torch

from fastverify.comm.cuda.compile import KernelSpec, load_cubin
from fastverify.comm.cuda.driver import Kernel, load_kernels
from fastverify.comm.cuda.launch import ISLAND_WORLD_SIZES, MAX_THREADS, NARROW_BLOCK, Algorithm, Launch, Protocol
from fastverify.errors import ConfigError

# Must match FV_FLOAT32, FV_BFLOAT16 and FV_FLOAT16 in sources/units.cuh.
DTYPE_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_BOXES = ("lines", "sentinel", "flags", "outbox_lines", "outbox_flags")
# A profiler shows these names; trace/kind_table.py knows them by the prefix.
FUNCTIONS = {
    "all_reduce.cu": (*(f"fastverify_all_reduce_{boxes}" for boxes in _BOXES), "fastverify_empty"),
    "two_shot.cu": tuple(f"fastverify_two_shot_{boxes}" for boxes in _BOXES),
    "islands.cu": ("fastverify_islands_lines", "fastverify_islands_sentinel"),
    "gather.cu": tuple(f"fastverify_all_gather_{boxes}" for boxes in _BOXES if boxes != "sentinel"),
    "fused.cu": tuple(f"fastverify_fused_{boxes}" for boxes in ("lines", "sentinel", "outbox_lines")),
    "fused_fp8.cu": tuple(f"fastverify_fused_fp8_{boxes}" for boxes in ("lines", "sentinel", "outbox_lines")),
}
_SOURCES = {Algorithm.ONE_SHOT: "all_reduce", Algorithm.TWO_SHOT: "two_shot", Algorithm.ISLANDS: "islands"}


def make_spec(
    source: str,
    world_size: int,
    dtype: torch.dtype,
    units: int,
    cluster: int = 1,
    *,
    threads: int = NARROW_BLOCK,
    has_scouts: bool = False,
) -> KernelSpec:
    """What to compile. Narrow blocks get twice the registers per thread, which a line from every rank needs."""
    defines = {
        "FV_WORLD": world_size,
        "FV_DTYPE": DTYPE_NUMBERS[dtype],
        "FV_UNITS": units,
        "FV_MAX_THREADS": MAX_THREADS if threads > NARROW_BLOCK else NARROW_BLOCK,
        "FV_CLUSTER": cluster,
        "FV_SCOUTS": int(has_scouts),
    }
    return KernelSpec(source, tuple(defines.items()))


def source_of(launch: Launch) -> str:
    """What sums: a file without its ending, which is also how its functions' names begin."""
    return _SOURCES[launch.algorithm]


def has_source(source: str, world_size: int) -> bool:
    """Whether a source exists for this many ranks."""
    return source != "islands.cu" or world_size in ISLAND_WORLD_SIZES


class KernelSet:
    """Kernels of `world_size` ranks on one device. Each method loads what is new, which no capture may do."""

    def __init__(self, device: torch.device, world_size: int) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        self.device = device
        self.architecture = f"sm_{major}{minor}"
        self.has_clusters = self.can_overlap = major >= 9
        self.has_fp8 = (major, minor) >= (8, 9)
        self._world_size = world_size
        self._loaded: dict[KernelSpec, dict[str, Kernel]] = {}

    def all_reduce(self, dtype: torch.dtype, launch: Launch, *, outbox: bool = False) -> Kernel:
        """Function that sums."""
        source = source_of(launch)
        return self._find(source, f"{source}_{_boxes(launch.protocol, outbox)}", dtype, launch)

    def fused(self, dtype: torch.dtype, launch: Launch, *, outbox: bool = False, fp8: bool = False) -> Kernel:
        """Function that sums, adds the residual and norms; `fp8`: and quantises the norm."""
        source = "fused_fp8" if fp8 else "fused"
        return self._find(source, f"{source}_{_boxes(launch.protocol, outbox)}", dtype, launch)

    def all_gather(self, launch: Launch, *, outbox: bool = False) -> Kernel:
        """Function that gathers bytes."""
        return self._find("gather", f"all_gather_{_boxes(launch.protocol, outbox)}", torch.bfloat16, launch)

    def empty(self) -> Kernel:
        """Function that does nothing, the floor of any time."""
        return self._load(make_spec("all_reduce.cu", self._world_size, torch.bfloat16, 1))["fastverify_empty"]

    def _find(self, source: str, function: str, dtype: torch.dtype, launch: Launch) -> Kernel:
        file, name = f"{source}.cu", f"fastverify_{function}"
        if name not in FUNCTIONS[file] or not has_source(file, self._world_size):
            raise ConfigError(
                f"{file} has {', '.join(FUNCTIONS[file])}, got {name} for {self._world_size} ranks. Use another launch."
            )
        spec = make_spec(
            *(file, self._world_size, dtype, launch.units, launch.cluster),
            threads=launch.threads,
            has_scouts=launch.has_scouts,
        )
        return self._load(spec)[name]

    def _load(self, spec: KernelSpec) -> dict[str, Kernel]:
        if spec not in self._loaded:
            if torch.cuda.is_current_stream_capturing():
                raise ConfigError(
                    f"kernels are loaded before a capture, got a first call of {spec.source} with {dict(spec.defines)} "
                    f"inside one. Make one eager call of the same shape on every rank before."
                )
            self._loaded[spec] = load_kernels(load_cubin(spec, self.architecture), FUNCTIONS[spec.source])
        return self._loaded[spec]


def _boxes(protocol: Protocol, outbox: bool) -> str:
    return f"outbox_{protocol.name.lower()}" if outbox else protocol.name.lower()


@cache
def kernel_set(device: torch.device, world_size: int) -> KernelSet:
    """The one set of a device and a number of ranks: modules are never unloaded, so they are loaded once."""
    return KernelSet(device, world_size)
