"""The adapters' common part, over a library that sums with gloo: enough to run it between real processes."""

import pytest
import torch

from fastverify.comm.accuracy import add_exactly, is_within, norm_error_bound, norm_exactly, sum_error_bound
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group, create_group
from fastverify.comm.peers.peer_backend import Limits, OutOfPlacePeer, has_module_file
from fastverify.errors import CommTimeoutError, FastverifyError, ShapeError, UnsupportedError
from tests.comm.fake_gpus import FakeEvent, fake_group, put_gpu_calls_aside
from tests.contracts.all_reduce_contract import make_inputs
from tests.ranks import run_ranks


class GlooPeer(OutOfPlacePeer):
    name = "gloo peer"
    limits = Limits("it", (torch.float32, torch.bfloat16), max_bytes=4096, multiple=4)

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._gloo = GlooBackend(group)
        self.num_freed = 0

    def check(self, timeout_s: float | None = None) -> None:
        """There is no GPU to wait for."""

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(self._gloo.all_reduce(x.clone()))

    def _free(self) -> None:
        self.num_freed += 1
        self._gloo.close()


@pytest.mark.ranks
def test_sums_norms_and_gathers() -> None:
    run_ranks(check_answers, 3)


def check_answers(rank: int, world_size: int, rendezvous: str) -> None:
    backend = GlooPeer(create_group(rank, world_size, rendezvous))
    inputs = make_inputs(world_size, (4, 16), torch.bfloat16, 3)
    kept = inputs[rank].clone()
    out = backend.all_reduce_out(kept, torch.empty_like(kept))
    assert torch.equal(kept, inputs[rank])
    x = kept.clone()
    assert backend.all_reduce(x) is x
    assert torch.equal(x, out)
    assert is_within(x, add_exactly(inputs), sum_error_bound(inputs, torch.bfloat16))

    before, weights = make_inputs(2, (4, 16), torch.bfloat16, 8)
    residual, other = before.clone(), before.clone()
    normed = backend.all_reduce_residual_rmsnorm_out(kept, residual, weights[0], 1e-5, torch.empty_like(kept))
    assert torch.equal(kept, inputs[rank])
    assert torch.equal(residual, before + out)
    exact, bound = (f(residual, weights[0], 1e-5) for f in (norm_exactly, norm_error_bound))
    assert is_within(normed, exact, bound)
    assert torch.equal(backend.all_reduce_residual_rmsnorm(kept, other, weights[0], 1e-5), normed)

    numbers = torch.tensor([rank, rank + 10])
    assert backend.all_gather(numbers).tolist() == [[0, 10], [1, 11], [2, 12]]
    backend.close()
    backend.close()
    assert backend.num_freed == 1
    with pytest.raises(FastverifyError, match="closed"):
        backend.all_reduce(x)


def test_limits_say_what_they_are() -> None:
    limits = GlooPeer.limits
    assert limits.check(1024, torch.float32).ok
    assert limits.check(1025, torch.float32).reason.endswith("up to 4 KB, got 4.0 KB")
    assert limits.check(0, torch.float32).reason
    assert "float16" in limits.check(8, torch.float16).reason
    assert "multiples of 4 bytes, got 6" in limits.check(3, torch.bfloat16).reason


@pytest.mark.ranks
def test_refusals() -> None:
    run_ranks(check_refusals, 2)


def check_refusals(rank: int, world_size: int, rendezvous: str) -> None:
    backend = GlooPeer(create_group(rank, world_size, rendezvous))
    with pytest.raises(UnsupportedError, match="multiples"):
        backend.all_reduce(torch.ones(3, dtype=torch.bfloat16))
    with pytest.raises(ShapeError, match="contiguous"):
        backend.all_reduce(torch.ones(4, 4).t())
    with pytest.raises(ShapeError, match="alike"):
        backend.all_reduce_out(torch.ones(4), torch.ones(8))
    backend.close()


class Waiting(OutOfPlacePeer):
    name = "waiting"
    limits = Limits("its all-reduce")
    is_freed = False

    def _sum(self, x: torch.Tensor, out: torch.Tensor) -> None:
        pass

    def _free(self) -> None:
        self.is_freed = True


def test_a_kernel_that_waits_for_ever_is_an_error_and_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    backend = Waiting(fake_group(device="cpu"))
    backend.check()
    monkeypatch.setattr(FakeEvent, "is_done", False)
    with pytest.raises(CommTimeoutError, match="rank 0 waited for its all-reduce of 2 ranks with a limit of 0.05 s"):
        backend.check(timeout_s=0.05)
    with pytest.raises(CommTimeoutError, match="end this process"):
        backend.close()
    assert not backend.is_freed
    backend.close()


def test_a_file_of_a_package_is_found_without_importing_it() -> None:
    assert has_module_file("fastverify", "comm/gloo.py")
    assert not has_module_file("fastverify", "comm/none.py")
    assert not has_module_file("no_such_package", "x.py")
