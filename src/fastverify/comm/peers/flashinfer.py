"""FlashInfer's all-reduce kernels behind the contract: the fused one of TensorRT-LLM, and the one for PCIe.

`flashinfer`: `allreduce_fusion` with the trtllm workspace, which sums rows, adds the residual and norms in one kernel,
with float32 accumulation. `flashinfer_pcie_ipc`: PcieIpcAllReduceWorkspace, from FlashInfer 0.7 on; its launch settings
are its own guesses unless its tune cache exists. Both are compiled with nvcc at first use, before any capture.
Written against FlashInfer 0.6.14 and the sources of 0.7. NEVER RUN so far: scripts/check_peers.py does where FlashInfer
is installed; tests hold the adapters against fakes of its API.
"""

from __future__ import annotations

import os
import shutil
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.backend import SUPPORTED, AllReduceBackend, Support
from fastverify.comm.group import Group
from fastverify.comm.peers.library_env import no_multicast
from fastverify.comm.peers.peer_backend import Limits, OutOfPlacePeer, has_module_file
from fastverify.comm.peers.peer_gpus import (
    check_capability,
    check_native_atomics,
    check_own_gpus,
    check_peer_access,
    first_refusal,
)
from fastverify.comm.peers.torch_groups import check_default_group, open_torch_group
from fastverify.errors import EnvironmentMissingError
from fastverify.units import BYTES_PER_MB

MAX_BYTES = 8 * BYTES_PER_MB
_WORLD_SIZES = (2, 4, 8)
_DTYPES = (torch.bfloat16, torch.float16)
_VECTOR_BYTES = 16
# The workspace is sized by rows x hidden; rows of any width fit as long as the product does.
_HIDDEN = 8192
_PCIE_IPC = "flashinfer_pcie_ipc"


def find_support(group: Group, name: str) -> Support:
    """Whether this rank could run the fused kernel or the one for PCIe."""
    support = first_refusal(check_own_gpus(group, "FlashInfer"), _check_package(name))
    if not support.ok:
        return support
    if group.world_size not in _WORLD_SIZES:
        return Support(ok=False, reason=f"FlashInfer's all-reduce takes 2, 4 or 8 ranks, got {group.world_size}")
    if name == _PCIE_IPC:
        links = check_peer_access(group, "FlashInfer's PCIe all-reduce")
    else:
        links = first_refusal(
            check_capability(group, "FlashInfer's fused all-reduce", (9, 10)),
            # Its two-shot kernel and its workspace are made for NVLink.
            check_native_atomics(group, "FlashInfer's fused all-reduce"),
        )
    return first_refusal(links, _check_compiler(), check_default_group(group, "FlashInfer"))


def create(group: Group, name: str) -> AllReduceBackend:
    """Compile and map the workspace. Raises EnvironmentMissingError where it cannot run."""
    support = find_support(group, name)
    if not support.ok:
        raise EnvironmentMissingError(f"the {name} backend cannot run: {support.reason}.")
    return PcieIpcBackend(group) if name == _PCIE_IPC else FusedBackend(group)


def _check_package(name: str) -> Support:
    if find_spec("flashinfer") is None:
        return Support(ok=False, reason="the package flashinfer-python is not installed")
    if name == _PCIE_IPC and not has_module_file("flashinfer", "comm/pcie_ipc_ar.py"):
        return Support(ok=False, reason="this FlashInfer has no PCIe all-reduce, which came with 0.7")
    return SUPPORTED


def _check_compiler() -> Support:
    if find_spec("flashinfer_jit_cache") is not None:
        return SUPPORTED
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if shutil.which("nvcc") is None and not (Path(home) / "bin" / "nvcc").is_file():
        return Support(ok=False, reason="FlashInfer compiles its kernels with nvcc, which is not here")
    if shutil.which("ninja") is None and find_spec("ninja") is None:
        return Support(ok=False, reason="FlashInfer compiles its kernels with ninja, which is not here")
    return SUPPORTED


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise EnvironmentMissingError(f"FlashInfer is installed but cannot be imported: {error}.") from error


def split_rows(x: torch.Tensor) -> tuple[int, int]:
    """`(rows, hidden)` to sum a message as: its own last dimension, or for a flat one the widest row that divides it.

    A row consists of whole vectors of 16 bytes and is at most 8192 elements wide.
    """
    vector = _VECTOR_BYTES // x.element_size()
    if x.dim() > 1 and x.shape[-1] % vector == 0:
        return x.numel() // x.shape[-1], x.shape[-1]
    num_vectors = x.numel() // vector
    widest = next(width for width in range(min(num_vectors, _HIDDEN // vector), 0, -1) if num_vectors % width == 0)
    return num_vectors // widest, widest * vector


class FusedBackend(OutOfPlacePeer):
    """`allreduce_fusion` over the trtllm workspace."""

    name = "flashinfer"
    limits = Limits("FlashInfer", _DTYPES, MAX_BYTES, multiple=_VECTOR_BYTES)

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._library = _import("flashinfer.comm")
        torch_group = open_torch_group(group, "FlashInfer")
        with torch.cuda.device(self._device), no_multicast():
            self._workspace = self._library.create_allreduce_fusion_workspace(
                backend="trtllm",
                world_size=group.world_size,
                rank=group.rank,
                max_token_num=MAX_BYTES // (_HIDDEN * _DTYPES[0].itemsize),
                hidden_dim=_HIDDEN,
                dtype=_DTYPES[0],
                group=torch_group,
            )

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """One kernel for sum, residual and norm; the norm overwrites `x`."""
        return self.all_reduce_residual_rmsnorm_out(x, residual, weight, eps, x)

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """One kernel for sum, residual and norm."""
        self._check(x, out)
        hidden = x.shape[-1]
        self._library.allreduce_fusion(
            input=x.view(-1, hidden),
            workspace=self._workspace,
            pattern=self._library.AllReduceFusionPattern.kARResidualRMSNorm,
            launch_with_pdl=True,
            residual_in=residual.view(-1, hidden),
            residual_out=residual.view(-1, hidden),
            norm_out=out.view(-1, hidden),
            rms_gamma=weight,
            rms_eps=eps,
            fp32_acc=True,
        )
        return out

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        shape = split_rows(x)
        self._library.allreduce_fusion(
            input=x.view(shape),
            workspace=self._workspace,
            pattern=self._library.AllReduceFusionPattern.kAllReduce,
            launch_with_pdl=True,
            output=out.view(shape),
            fp32_acc=True,
        )

    def _free(self) -> None:
        torch.cuda.synchronize(self._device)
        # The library keeps the memory itself until this is called; destroy() alone does not.
        self._library.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(self._workspace.ipc_handles)
        self._workspace.destroy()


class PcieIpcBackend(OutOfPlacePeer):
    """PcieIpcAllReduceWorkspace: out of place, so a sum in place goes through a tensor of its own."""

    name = _PCIE_IPC
    limits = Limits("FlashInfer's PCIe all-reduce", _DTYPES, MAX_BYTES, multiple=_VECTOR_BYTES)

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        library = _import("flashinfer.comm.pcie_ipc_ar")
        self._stream: torch.cuda.Stream | None = None
        with torch.cuda.device(self._device):
            self._workspace = library.PcieIpcAllReduceWorkspace(
                group=open_torch_group(group, "FlashInfer"), max_numel=MAX_BYTES // _DTYPES[0].itemsize
            )

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if not torch.cuda.is_current_stream_capturing():
            self._follow_stream()
        target = torch.empty_like(x) if out is x else out
        with warnings.catch_warnings():
            # It warns once that nobody tuned it; this module's docstring says so.
            warnings.simplefilter("ignore", UserWarning)
            self._workspace.all_reduce(x, out=target)
        if out is x:
            x.copy_(target)

    def _follow_stream(self) -> None:
        """It serves one stream at a time; the one before must have ended before it may serve another."""
        current = torch.cuda.current_stream(self._device)
        if self._stream is not None and current != self._stream:
            self._stream.synchronize()
            self._workspace.rebind_stream()
        self._stream = current

    def _free(self) -> None:
        torch.cuda.synchronize(self._device)
        self._workspace.destroy()
