"""The adapters' logic over fakes of FlashInfer's API, with the signatures of 0.6.14 and 0.7. Nothing here runs it."""

import os
import sys
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fastverify.comm.peers import flashinfer
from fastverify.comm.peers.flashinfer import FusedBackend, PcieIpcBackend, find_support, split_rows
from fastverify.comm.peers.library_env import DISABLE_MULTICAST
from fastverify.comm.rmsnorm import rms_norm
from fastverify.errors import EnvironmentMissingError
from tests.comm.fake_gpus import FakeFacts, FakeStream, fake_group, put_gpu_calls_aside, set_facts

RELEASED: list[list[list[int]]] = []


class FakeWorkspace:
    def __init__(self) -> None:
        self.num_destroyed = 0
        self.ipc_handles = [[1, 2]]

    def destroy(self) -> None:
        self.num_destroyed += 1


def create_allreduce_fusion_workspace(
    backend: str = "auto",
    world_size: int | None = None,
    rank: int | None = None,
    max_token_num: int | None = None,
    hidden_dim: int | None = None,
    dtype: torch.dtype | None = None,
    gpus_per_node: int | None = None,
    comm_backend: Any = None,
    force_oneshot_support: bool = False,
    group: Any = None,
) -> FakeWorkspace:
    assert backend == "trtllm"  # "auto" may take the one that needs multicast
    assert os.environ[DISABLE_MULTICAST] == "1"
    assert max_token_num is not None
    assert hidden_dim is not None
    assert max_token_num * hidden_dim * 2 == flashinfer.MAX_BYTES
    return FakeWorkspace()


def allreduce_fusion(
    input: torch.Tensor,
    workspace: Any,
    pattern: int,
    launch_with_pdl: bool = False,
    trigger_completion_at_end: bool = True,
    output: torch.Tensor | None = None,
    residual_out: torch.Tensor | None = None,
    norm_out: torch.Tensor | None = None,
    residual_in: torch.Tensor | None = None,
    rms_gamma: torch.Tensor | None = None,
    rms_eps: float = 1e-6,
    use_oneshot: bool | None = None,
    fp32_acc: bool = False,
) -> torch.Tensor:
    """Rank 0 of two; the other rank holds ones."""
    assert input.dim() == 2
    assert fp32_acc
    total = (input.float() + 1).to(input.dtype)
    if pattern == 0:
        assert output is not None
        return output.copy_(total)
    assert residual_in is not None
    assert residual_out is not None
    assert norm_out is not None
    assert rms_gamma is not None
    residual_out.copy_(residual_in + total)
    return norm_out.copy_(rms_norm(residual_out, rms_gamma, rms_eps))


class FakePcieWorkspace(FakeWorkspace):
    def __init__(self, group: Any, max_numel: int, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.num_rebinds = 0

    def rebind_stream(self) -> None:
        self.num_rebinds += 1

    def all_reduce(self, inp: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        assert out is not None
        assert out.data_ptr() != inp.data_ptr()  # out of place
        warnings.warn("nobody tuned this", UserWarning, stacklevel=2)
        return out.copy_((inp.float() + 1).to(inp.dtype))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """FlashInfer as an installed package; returns its folder."""
    package, comm, pcie = (
        ModuleType(name) for name in ("flashinfer", "flashinfer.comm", "flashinfer.comm.pcie_ipc_ar")
    )
    comm.create_allreduce_fusion_workspace = create_allreduce_fusion_workspace  # type: ignore[attr-defined]
    comm.allreduce_fusion = allreduce_fusion  # type: ignore[attr-defined]
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion = RELEASED.append  # type: ignore[attr-defined]
    comm.AllReduceFusionPattern = SimpleNamespace(kAllReduce=0, kARResidualRMSNorm=1)  # type: ignore[attr-defined]
    pcie.PcieIpcAllReduceWorkspace = FakePcieWorkspace  # type: ignore[attr-defined]
    for module in (package, comm, pcie):
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert package.__spec__ is not None
    package.__spec__.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(flashinfer, "open_torch_group", lambda group, library: object())
    return tmp_path


@pytest.mark.usefixtures("library")
def test_the_fused_kernel_sums_and_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    backend = FusedBackend(fake_group(device="cpu"))
    assert DISABLE_MULTICAST not in os.environ
    x = torch.arange(32, dtype=torch.bfloat16).view(4, 8)
    total, before, weight = x + 1, torch.full_like(x, 3), torch.full((8,), 2.0).bfloat16()
    assert torch.equal(backend.all_reduce_out(x, torch.empty_like(x)), total)
    residual, other = before.clone(), before.clone()
    out = backend.all_reduce_residual_rmsnorm_out(x, residual, weight, 1e-5, torch.empty_like(x))
    assert torch.equal(residual, before + total)
    assert torch.equal(out, rms_norm(residual, weight, 1e-5))
    normed = backend.all_reduce_residual_rmsnorm(x, other, weight, 1e-5)
    assert torch.equal(normed, out)
    assert torch.equal(other, residual)
    backend.close()
    assert backend._workspace.num_destroyed == 1
    assert RELEASED.pop() == [[1, 2]]


@pytest.mark.usefixtures("library")
def test_the_pcie_kernel_works_in_place_and_follows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    backend = PcieIpcBackend(fake_group(device="cpu"))
    x = torch.zeros(16, dtype=torch.bfloat16)
    assert backend.all_reduce(x) is x
    assert (x == 1).all()
    backend.all_reduce_out(x, torch.empty_like(x))
    assert backend._workspace.num_rebinds == 0
    first, second = backend._stream, FakeStream()
    assert isinstance(first, FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: second)
    num_waits = first.num_waits
    backend.all_reduce(x)
    assert first.num_waits == num_waits + 1
    assert backend._workspace.num_rebinds == 1
    backend.close()


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((8,), (1, 8)),
        ((4096,), (1, 4096)),
        ((28_672,), (4, 7168)),
        ((524_288,), (64, 8192)),
        ((8 * 1031,), (1031, 8)),
        ((16, 7168), (16, 7168)),
        ((2, 3, 64), (6, 64)),
        ((4, 4), (1, 16)),
    ],
)
def test_a_message_becomes_rows_of_whole_vectors(shape: tuple[int, ...], rows: tuple[int, int]) -> None:
    assert split_rows(torch.zeros(shape, dtype=torch.bfloat16)) == rows


def test_refusals(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer.shutil, "which", lambda name: f"/usr/bin/{name}")
    set_facts(monkeypatch, FakeFacts(num_gpus=4))
    assert find_support(fake_group(), "flashinfer").ok
    assert "0.7" in find_support(fake_group(), "flashinfer_pcie_ipc").reason
    (library / "comm").mkdir()
    (library / "comm" / "pcie_ipc_ar.py").touch()
    assert find_support(fake_group(), "flashinfer_pcie_ipc").ok
    assert "2, 4 or 8" in find_support(fake_group(3), "flashinfer").reason
    set_facts(monkeypatch, FakeFacts(sm=(12, 0), atomics=False))
    assert "SM120" in find_support(fake_group(), "flashinfer").reason
    assert find_support(fake_group(), "flashinfer_pcie_ipc").ok
    set_facts(monkeypatch, FakeFacts(atomics=False))
    assert "NVLink" in find_support(fake_group(), "flashinfer").reason


@pytest.mark.usefixtures("library")
def test_a_library_that_cannot_be_imported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    monkeypatch.setitem(sys.modules, "flashinfer.comm", None)
    with pytest.raises(EnvironmentMissingError, match="cannot be imported"):
        FusedBackend(fake_group(device="cpu"))


@pytest.mark.usefixtures("library")
def test_no_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_facts(monkeypatch, FakeFacts())
    monkeypatch.setattr(flashinfer.shutil, "which", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert "nvcc" in find_support(fake_group(), "flashinfer").reason


def test_without_the_package() -> None:
    assert "flashinfer-python" in flashinfer._check_package("flashinfer").reason
    assert "float32" in FusedBackend.limits.check(8, torch.float32).reason
