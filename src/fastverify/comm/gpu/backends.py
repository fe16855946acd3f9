"""Every all-reduce backend for GPUs by name, and whether it can run in a group: what chooser and benchmark list.

Modules are imported when they are asked for, since each needs a library that may be missing. Each of them has
`find_support(group, name)`, which looks at this rank only and never raises, and `create(group, name)`, which every rank
of the group calls together. What an environment variable changes (NCCL's algorithm, say) is no backend of its own: it
needs processes of its own, which the benchmark starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from fastverify.comm.backend import AllReduceBackend, Support
from fastverify.comm.group import Group
from fastverify.errors import ConfigError


@dataclass(frozen=True)
class GpuBackendSpec:
    """One backend: where its code is, and what it is in a few words."""

    name: str
    module: str
    summary: str

    def find_support(self, group: Group) -> Support:
        """Whether this rank could run it, and why not in one sentence; never raises."""
        try:
            module = import_module(self.module)
        except ImportError as error:
            return Support(ok=False, reason=f"the package {error.name} cannot be imported")
        support: Support = module.find_support(group, self.name)
        return support

    def create(self, group: Group) -> AllReduceBackend:
        """Set it up; every rank calls this together. Raises EnvironmentMissingError where it cannot run."""
        backend: AllReduceBackend = import_module(self.module).create(group, self.name)
        return backend


GPU_BACKENDS = {
    spec.name: spec
    for spec in (
        GpuBackendSpec("push", "fastverify.comm.cuda.backend", "one kernel that writes into every peer's GPU memory"),
        GpuBackendSpec("push_two_shot", "fastverify.comm.cuda.backend", "the same, each rank summing one part"),
        GpuBackendSpec(
            "islands", "fastverify.comm.cuda.backend", "two-shot within each half of the ranks, then across"
        ),
        GpuBackendSpec("host", "fastverify.comm.cuda.backend", "one kernel through pinned host memory"),
        GpuBackendSpec("host_two_shot", "fastverify.comm.cuda.backend", "the same, each rank summing one part"),
        GpuBackendSpec("nccl", "fastverify.comm.peers.nccl", "NCCL as the environment sets it"),
        GpuBackendSpec("nccl_window", "fastverify.comm.peers.nccl", "NCCL on memory that it registered symmetrically"),
        GpuBackendSpec(
            "symm_mem_one_shot", "fastverify.comm.peers.symm_mem", "PyTorch symmetric memory, every rank reads all"
        ),
        GpuBackendSpec(
            "symm_mem_two_shot", "fastverify.comm.peers.symm_mem", "PyTorch symmetric memory, each sums one part"
        ),
        GpuBackendSpec(
            "symm_mem_multimem", "fastverify.comm.peers.symm_mem", "PyTorch symmetric memory, summed by the switch"
        ),
        GpuBackendSpec("flashinfer", "fastverify.comm.peers.flashinfer", "FlashInfer's fused all-reduce"),
        GpuBackendSpec("flashinfer_pcie_ipc", "fastverify.comm.peers.flashinfer", "FlashInfer's all-reduce for PCIe"),
        GpuBackendSpec("vllm", "fastverify.comm.peers.vllm", "vLLM's custom all-reduce"),
        GpuBackendSpec("mscclpp", "fastverify.comm.peers.mscclpp", "MSCCL++ packet kernels"),
    )
}


def find_gpu_backend(name: str) -> GpuBackendSpec:
    """The backend of this name. Raises ConfigError for an unknown one."""
    if name not in GPU_BACKENDS:
        raise ConfigError(f"a GPU all-reduce backend is one of {', '.join(GPU_BACKENDS)}, got {name!r}.")
    return GPU_BACKENDS[name]
