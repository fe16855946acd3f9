import pytest
import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.communicator import Communicator, create_communicator
from fastverify.comm.cuda.launch import Launch, Protocol
from fastverify.comm.gpu import auto
from fastverify.comm.gpu.auto import AutoBackend
from fastverify.comm.gpu.plan import Pick, Plan, Step
from fastverify.comm.group import Group, create_group
from fastverify.errors import ConfigError, UnsupportedError

LAUNCH = Launch(Protocol.SENTINEL, 64, 256)


class Spy:
    """A backend of one rank that writes down what it was asked; `limit` elements are the most it takes."""

    def __init__(self, name: str, limit: int = 1 << 30, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> None:
        self.name, self._limit, self._dtypes = name, limit, dtypes
        self.calls: list[str] = []
        self.closed = 0

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        if num_elements <= self._limit and dtype in self._dtypes:
            return SUPPORTED
        return Support(ok=False, reason=f"{self.name} takes {self._limit} elements")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append("sum")
        return x

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        self.calls.append("norm")
        residual.add_(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append("gather")
        return x.unsqueeze(0).clone()

    def close(self) -> None:
        self.closed += 1


class OutSpy(Spy):
    """It works out of place too."""

    def all_reduce_out(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.calls.append("sum out")
        return out.copy_(x)

    def all_reduce_residual_rmsnorm_out(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        self.calls.append("norm out")
        residual.add_(x)
        return out.copy_(x)


def pick(name: str, separate_norm: bool = False) -> Pick:
    return Pick(name, LAUNCH if name.startswith("push") else None, 1.0, separate_norm)


PLAN = Plan(
    {
        "all_reduce": (Step(64, (pick("push_two_shot"), pick("nccl"))), Step(256, (pick("vllm"), pick("nccl")))),
        "all_reduce_residual_rmsnorm": (
            Step(64, (pick("push"), pick("nccl")), 32),
            Step(256, (pick("nccl", True), pick("push")), 32),
            Step(1 << 20, (pick("nccl"),), 4096),
        ),
        "all_gather": (Step(64, (pick("push"),)), Step(256, (pick("nccl"),))),
    }
)


def open_auto() -> tuple[AutoBackend, Spy, Spy, Spy]:
    both = (torch.float32, torch.bfloat16)
    push, nccl, vllm = OutSpy("push", dtypes=both), Spy("nccl"), Spy("vllm", limit=60)
    return AutoBackend({"push": push, "nccl": nccl, "vllm": vllm}, PLAN), push, nccl, vllm


def test_each_size_goes_where_the_plan_says_or_to_the_next_that_can() -> None:
    auto, push, nccl, vllm = open_auto()
    assert auto.name == "auto(push_two_shot+vllm+push+nccl)"
    for num_elements in (16, 17, 60, 61):  # the last is too large for vllm
        auto.all_reduce(torch.ones(num_elements))
    assert [spy.calls for spy in (push, vllm, nccl)] == [["sum"], ["sum", "sum"], ["sum"]]
    auto.all_reduce(torch.ones(100, dtype=torch.bfloat16))
    assert push.calls == ["sum", "sum"], "who is not planned there but can is better than an error"
    assert not auto.can_run(16, torch.int32).ok
    with pytest.raises(UnsupportedError, match="push takes"):
        auto.all_reduce(torch.ones(16, dtype=torch.int32))


def test_norms_are_fused_or_beside_the_planned_sum() -> None:
    auto, push, nccl, vllm = open_auto()
    x, weight = torch.full((2, 8), 3.0), torch.ones(8)
    residual = torch.ones(2, 8)
    auto.all_reduce_residual_rmsnorm(x, residual, weight, 0.0)
    assert push.calls == ["norm"]
    x = torch.full((7, 8), 3.0)
    residual, out = torch.ones(7, 8), torch.empty(7, 8)
    normed = auto.all_reduce_residual_rmsnorm(x.clone(), residual, weight, 0.0)
    assert vllm.calls == ["sum"], "the planned sum, whoever the norm was measured with"
    assert (residual == 4).all()
    assert torch.equal(normed, torch.ones(7, 8))
    assert torch.equal(auto.all_reduce_residual_rmsnorm_out(x, residual, weight, 0.0, out), torch.ones(7, 8))
    assert (residual == 7).all()
    assert (x == 3).all()
    assert nccl.calls == []


def test_gathers_have_a_plan_of_their_own_and_closing_closes_all() -> None:
    auto, push, nccl, vllm = open_auto()
    for num_elements in (16, 17):
        auto.all_gather(torch.ones(num_elements))
    assert (push.calls, nccl.calls) == (["gather"], ["gather"])
    auto.close()
    assert [spy.closed for spy in (push, nccl, vllm)] == [1, 1, 1]


def test_a_communicator_works_out_of_place_where_the_backend_does() -> None:
    push = OutSpy("push")
    communicator = Communicator(create_group(0, 1), AutoBackend({"push": push}, Plan({})))
    x, residual = torch.ones(2, 8), torch.ones(2, 8)
    assert communicator.all_reduce_copy(x) is not x
    communicator.all_reduce_residual_rmsnorm_copy(x, residual, torch.ones(8), 0.0)
    assert push.calls == ["sum out", "norm out"]
    assert communicator.backend_name == "auto(push)"
    assert [key.op for key in communicator.stats.snapshot().totals] == ["all_reduce", "all_reduce_residual_rmsnorm"]


def test_names_depend_on_the_device_of_the_group() -> None:
    gpus = Group(0, 2, object(), "g", 1.0, (1, 2), torch.device("cuda", 0), gpus=("a", "b"))  # type: ignore[arg-type]
    cpus = Group(0, 2, object(), "g", 1.0, (1, 2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="on cuda is one of auto, push, .*nccl.*, got 'shm'"):
        create_communicator(gpus, "shm")
    with pytest.raises(ConfigError, match="on cpu is one of auto, gloo, shm, got 'push'"):
        create_communicator(cpus, "push")


def test_what_was_found_for_old_shapes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_MAX_SHAPES", 10)
    backend = AutoBackend({"nccl": Spy("nccl")}, Plan({}))
    weight = torch.ones(1)
    for length in range(1, 100):
        x = torch.zeros(length, 1)
        backend.all_reduce(x)
        backend.all_reduce_residual_rmsnorm(x, torch.zeros_like(x), weight, 1e-5)
        backend.all_gather(x)
    sizes = [len(known) for known in (backend._sums, backend._norms, backend._gathers)]
    assert all(0 < size <= 10 for size in sizes), sizes
