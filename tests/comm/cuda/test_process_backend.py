"""What the backend makes of tensors and failures, over a rank that doubles on the CPU in place of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fastverify.comm.backend import OutOfPlaceBackend
from fastverify.comm.cuda import process_backend
from fastverify.comm.cuda.process_backend import CudaBackend
from fastverify.comm.cuda.watchdog import Watch, Watchdog
from fastverify.comm.group import Group
from fastverify.comm.processes import PeerProcesses
from fastverify.comm.rmsnorm import rms_norm
from fastverify.errors import CommTimeoutError, FastverifyError, ShapeError, UnsupportedError

WORLD_SIZE = 2
LARGEST_ROW = 64


@dataclass(frozen=True)
class FakeReport:
    peer: int
    epoch: int


@dataclass
class DoublingRank:
    """Both ranks hold the same, so a sum is twice the input. Insists on what real kernels insist on."""

    calls: list[str] = field(default_factory=list)
    report: FakeReport | None = None
    device: torch.device = torch.device("cpu")

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = x if out is None else out
        self._start("all_reduce", x, out)
        return out.copy_(2 * x)

    def all_reduce_residual_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = x if out is None else out
        if x.shape[1] > LARGEST_ROW:
            raise ShapeError("a row is too long.")
        self._start("fused", x, residual, weight, out)
        residual += 2 * x
        return out.copy_(rms_norm(residual, weight, eps))

    def all_gather(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._start("all_gather", x, out)
        return out.copy_(torch.stack([x] * WORLD_SIZE))

    def status(self) -> FakeReport | None:
        return self.report

    def abort(self) -> None:
        self.calls.append("abort")

    def _start(self, name: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            assert tensor.data_ptr() % 16 == 0
            assert tensor.is_contiguous()
        self.calls.append(name)


class FakeMemory:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def close(self) -> None:
        self._calls.append("close memory")


class NoContext:
    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> DoublingRank:
    rank = DoublingRank()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: rank.calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "device", NoContext)
    return rank


def open_backend(rank: Any) -> tuple[CudaBackend, Watch]:
    group = Group(0, 1, None, "name", 1.0, (0,))
    object.__setattr__(group, "world_size", WORLD_SIZE)
    watch = Watch(group, "push", rank, PeerProcesses(()))
    backend = CudaBackend("push", group, "push", rank, FakeMemory(rank.calls), watch, watchdog=Watchdog(period_s=60))
    return backend, watch


def test_sums_in_place_and_out_of_place(rank: DoublingRank) -> None:
    backend, _ = open_backend(rank)
    assert isinstance(backend, OutOfPlaceBackend)
    x, out = torch.arange(6.0), torch.zeros(6)
    assert backend.all_reduce_out(x, out) is out
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert backend.all_reduce(x) is x
    assert torch.equal(x, out)
    assert not backend.fallbacks
    backend.close()


def test_memory_that_kernels_cannot_take_is_copied_and_counted(rank: DoublingRank) -> None:
    backend, _ = open_backend(rank)
    whole = torch.ones(64)
    assert backend.all_reduce(whole[1:33]).tolist() == [2.0] * 32
    assert whole.tolist() == [1.0] + [2.0] * 32 + [1.0] * 31
    grid = torch.arange(12.0).view(3, 4)
    assert torch.equal(backend.all_gather(grid.t()), torch.stack([grid.t()] * 2))
    assert backend.fallbacks[process_backend._NOT_PLAIN] == 2
    backend.close()


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (8,)])
@pytest.mark.parametrize("offset", [0, 1])
def test_fused_norms_of_any_shape_and_alignment(rank: DoublingRank, shape: tuple[int, ...], offset: int) -> None:
    backend, _ = open_backend(rank)
    x, residual = (torch.randn(1000)[offset : offset + torch.Size(shape).numel()].view(shape) for _ in range(2))
    weight = torch.randn(9)[1:] if offset else torch.randn(8)
    expected_residual = residual + 2 * x
    out = torch.zeros(shape)
    assert backend.all_reduce_residual_rmsnorm_out(x, residual, weight, 1e-5, out) is out
    assert torch.equal(residual, expected_residual)
    assert torch.equal(out, rms_norm(expected_residual, weight, 1e-5))
    # One kernel whatever the alignment: the other ranks' tensors may be aligned.
    assert rank.calls == ["fused"]
    backend.close()


def test_what_the_fused_kernel_cannot_hold_is_normed_separately_and_counted(rank: DoublingRank) -> None:
    backend, _ = open_backend(rank)
    x, residual, weight = torch.randn(2, LARGEST_ROW + 1), torch.randn(2, LARGEST_ROW + 1), torch.ones(LARGEST_ROW + 1)
    expected = rms_norm(residual + 2 * x, weight, 1e-5)
    assert torch.equal(backend.all_reduce_residual_rmsnorm(x, residual, weight, 1e-5), expected)
    half = torch.randn(2, 8, dtype=torch.bfloat16)
    backend.all_reduce_residual_rmsnorm(half, torch.zeros(2, 8), torch.ones(8), 1e-5)
    assert rank.calls == ["all_reduce", "all_reduce"]
    assert backend.fallbacks == {"a row is too long.": 1, "mixed dtypes": 1}
    with pytest.raises(ShapeError, match="one shape"):
        backend.all_reduce_residual_rmsnorm(x, residual[:1], weight, 1e-5)
    backend.close()


def test_gathers_nothing_without_a_call(rank: DoublingRank) -> None:
    backend, _ = open_backend(rank)
    assert backend.all_gather(torch.zeros(0, 3)).shape == (2, 0, 3)
    assert backend.all_gather(torch.tensor(True)).tolist() == [True, True]
    assert rank.calls == ["all_gather"]
    backend.close()


@pytest.mark.parametrize("x", [torch.ones(4, dtype=torch.int32), torch.ones(0)])
def test_what_cannot_be_summed_is_refused(rank: DoublingRank, x: torch.Tensor) -> None:
    backend, _ = open_backend(rank)
    assert not backend.can_run(x.numel(), x.dtype).ok
    with pytest.raises(UnsupportedError):
        backend.all_reduce(x)
    assert backend.can_run(1, torch.bfloat16).ok
    assert not rank.calls
    backend.close()


def test_after_a_failure_calls_raise_and_close_frees(rank: DoublingRank) -> None:
    backend, watch = open_backend(rank)
    rank.report = FakeReport(peer=1, epoch=4)
    watch.look()
    for call in (backend.all_reduce, backend.all_gather):
        with pytest.raises(CommTimeoutError, match="for rank 1 in call 4"):
            call(torch.ones(4))
    backend.close()
    backend.close()
    assert rank.calls == ["abort", "abort", "synchronize", "close memory"]


def test_check_waits_and_looks_at_once(rank: DoublingRank) -> None:
    backend, _ = open_backend(rank)
    backend.check()
    rank.report = FakeReport(peer=1, epoch=9)
    with pytest.raises(CommTimeoutError, match="for rank 1 in call 9"):
        backend.check()
    assert rank.calls == ["synchronize", "synchronize", "abort"]
    backend.close()


def test_a_closed_backend_says_so(rank: DoublingRank) -> None:
    backend, _ = open_backend(rank)
    backend.close()
    with pytest.raises(FastverifyError, match="push is closed"):
        backend.all_reduce(torch.ones(4))
    assert rank.calls == ["synchronize", "close memory"]
