"""The kernels of one GPU: which function for which dtype, ranks and launch, compiled and loaded on first use."""

from __future__ import annotations

from functools import cache

import torch

from fastverify.comm.cuda.compile import KernelSpec, load_cubin
from fastverify.comm.cuda.driver import Kernel, load_kernels
from fastverify.comm.cuda.launch import Launch, max_threads

# Must match FV_FLOAT32, FV_BFLOAT16 and FV_FLOAT16 in sources/inbox.cuh.
DTYPE_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# A profiler shows these names; trace/kind_table.py knows them by the prefix.
FUNCTIONS = {
    "all_reduce.cu": (
        "fastverify_all_reduce_lines",
        "fastverify_all_reduce_sentinel",
        "fastverify_all_reduce_flags",
        "fastverify_empty",
    ),
    "fused.cu": ("fastverify_fused_lines", "fastverify_fused_sentinel"),
}


def make_spec(source: str, world_size: int, dtype: torch.dtype, units: int, cluster: int = 1) -> KernelSpec:
    """What to compile."""
    defines = {
        "FV_WORLD": world_size,
        "FV_DTYPE": DTYPE_NUMBERS[dtype],
        "FV_UNITS": units,
        "FV_MAX_THREADS": max_threads(units),
        "FV_CLUSTER": cluster,
    }
    return KernelSpec(source, tuple(defines.items()))


class KernelSet:
    """Kernels of `world_size` ranks on one device."""

    def __init__(self, device: torch.device, world_size: int) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        self.architecture = f"sm_{major}{minor}"
        self.has_clusters = self.can_overlap = major >= 9
        self._world_size = world_size
        self._loaded: dict[KernelSpec, dict[str, Kernel]] = {}

    def all_reduce(self, dtype: torch.dtype, launch: Launch) -> Kernel:
        """Function that sums; loads it where it is new, which must not happen during a capture."""
        name = f"fastverify_all_reduce_{launch.protocol.name.lower()}"
        return self._load(make_spec("all_reduce.cu", self._world_size, dtype, launch.units))[name]

    def fused(self, dtype: torch.dtype, launch: Launch) -> Kernel:
        """Function that sums, adds the residual and norms."""
        name = f"fastverify_fused_{launch.protocol.name.lower()}"
        return self._load(make_spec("fused.cu", self._world_size, dtype, launch.units, launch.cluster))[name]

    def empty(self) -> Kernel:
        """Function that does nothing, the floor of any time."""
        return self._load(make_spec("all_reduce.cu", self._world_size, torch.bfloat16, 1))["fastverify_empty"]

    def _load(self, spec: KernelSpec) -> dict[str, Kernel]:
        if spec not in self._loaded:
            self._loaded[spec] = load_kernels(load_cubin(spec, self.architecture), FUNCTIONS[spec.source])
        return self._loaded[spec]


@cache
def kernel_set(device: torch.device, world_size: int) -> KernelSet:
    """The one set of a device and a number of ranks: modules are never unloaded, so they are loaded once."""
    return KernelSet(device, world_size)
