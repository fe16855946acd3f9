"""NCCL's adapter over a fake of torch's ProcessGroupNCCL: deadlines, errors, closing. Nothing here runs NCCL."""

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C import _distributed_c10d as c10d

from fastverify.comm.backend import OutOfPlaceBackend
from fastverify.comm.peers import nccl
from fastverify.comm.peers.nccl import NcclBackend, create, find_support
from fastverify.comm.peers.nccl_failure import check_server_calls, explain_nccl_error, find_last_error
from fastverify.comm.peers.nccl_window import WINDOW_BYTES, NcclWindowBackend, find_window_support
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import CommTimeoutError, ConfigError, FastverifyError, UnsupportedError
from tests.comm.fake_gpus import FakeEvent, FakeFacts, fake_group, put_gpu_calls_aside, set_facts
from tests.comm.peers.test_nccl_settings import BROADCAST_ERROR

DUPLICATE_ERROR = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for "
    "details), NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast "
    "error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1d000"
)
ABORTED_ERROR = "NCCL communicator was aborted on rank 0. Original reason for failure was: watchdog"
WATCHDOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class FakeOptions:
    _timeout = timedelta(minutes=30)


class FakeProcessGroupNCCL:
    """Rank 0 of two; the other holds ones. `error`: what the next call raises."""

    Options = FakeOptions

    def __init__(self, store: Any, rank: int, size: int, options: FakeOptions) -> None:
        self.size, self.options = size, options
        self.handling = os.environ.get(WATCHDOG)
        self.error: str = ""
        self.state = c10d.ErrorType.SUCCESS
        self.ended_by: list[str] = []
        self.pools: list[tuple[object, bool]] = []
        self.mem_allocator = object()

    def _start(self, options: Any) -> None:
        assert options.asyncOp is False
        if self.error:
            raise RuntimeError(self.error)

    def allreduce(self, tensors: list[torch.Tensor], options: c10d.AllreduceOptions) -> None:
        self._start(options)
        tensors[0].add_(1)

    def broadcast(self, tensors: list[torch.Tensor], options: c10d.BroadcastOptions) -> None:
        self._start(options)

    def _allgather_base(self, out: torch.Tensor, x: torch.Tensor, options: c10d.AllgatherOptions) -> None:
        self._start(options)
        assert out.dtype == x.dtype == torch.uint8
        out.copy_(x.repeat(self.size))

    def get_error(self) -> c10d.ErrorType:
        return self.state

    def register_mem_pool(self, pool: object, symm: bool = False) -> None:
        self.pools.append((pool, symm))

    def deregister_mem_pool(self, pool: object) -> None:
        self.pools.remove((pool, True))

    def abort(self) -> None:
        self.ended_by.append("abort")

    def shutdown(self) -> None:
        self.ended_by.append("shutdown")

    @staticmethod
    def get_runtime_nccl_version() -> tuple[int, int, int]:
        return (2, 28, 9)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", FakeProcessGroupNCCL, raising=False)
    monkeypatch.setattr(nccl, "meet_in_store", lambda group, name: (c10d.HashStore(), name))
    monkeypatch.setattr(PeerProcesses, "find_dead", lambda self: [])
    monkeypatch.setattr(PeerProcesses, "explain_failure", lambda self: "one of them is late")
    monkeypatch.delenv(WATCHDOG, raising=False)


def open_backend() -> NcclBackend:
    return NcclBackend(fake_group(device="cpu"))


@pytest.mark.usefixtures("library")
def test_calls_answer_and_the_watchdog_is_told_to_abort_instead_of_ending_the_process() -> None:
    backend = open_backend()
    assert backend._nccl.handling == "2"
    assert WATCHDOG not in os.environ
    assert backend._nccl.options._timeout == timedelta(seconds=1)
    x = torch.zeros(4, dtype=torch.bfloat16)
    assert backend.all_reduce(x) is x
    assert x.tolist() == [1.0] * 4
    assert not isinstance(backend, OutOfPlaceBackend)  # it would have to copy, which no server does
    assert backend.all_gather(torch.tensor(True)).tolist() == [True, True]
    assert backend.all_gather(torch.tensor([[1, 2]])).shape == (2, 1, 2)
    backend.close()
    assert backend._nccl.ended_by == ["shutdown"]
    for call in (backend.all_reduce, backend.all_gather, backend.broadcast):
        with pytest.raises(FastverifyError, match="nccl backend is closed"):
            call(torch.zeros(4))


@pytest.mark.usefixtures("library")
def test_what_the_user_says_about_the_watchdog_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WATCHDOG, "3")
    assert open_backend()._nccl.handling == "3"
    assert os.environ[WATCHDOG] == "3"


@pytest.mark.usefixtures("library")
def test_a_rank_that_is_late_is_an_error_that_ends_the_communicator() -> None:
    backend = open_backend()
    FakeEvent.is_done = False
    with pytest.raises(CommTimeoutError, match=r"limit of 0.05 s: one of them is late"):
        backend.check(timeout_s=0.05)
    assert backend._nccl.ended_by == ["abort"]
    with pytest.raises(CommTimeoutError, match="create new groups"):
        backend.all_reduce(torch.zeros(4))
    backend.close()
    assert backend._nccl.ended_by == ["abort"]


@pytest.mark.usefixtures("library")
def test_a_dead_rank_is_an_error_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend()
    monkeypatch.setattr(PeerProcesses, "find_dead", lambda self: [1])
    FakeEvent.is_done = False
    with pytest.raises(CommTimeoutError):
        backend.check(timeout_s=1000)


@pytest.mark.usefixtures("library")
def test_what_the_watchdog_aborted_is_no_sum() -> None:
    backend = open_backend()
    backend._nccl.state = c10d.ErrorType.TIMEOUT
    with pytest.raises(CommTimeoutError):
        backend.check()
    other = open_backend()
    other._nccl.state = c10d.ErrorType.COMM_ERROR
    with pytest.raises(CommTimeoutError):
        other.all_reduce(torch.zeros(4))


@pytest.mark.usefixtures("library")
def test_closing_beside_a_dead_rank_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend()
    monkeypatch.setattr(PeerProcesses, "find_dead", lambda self: [1])
    backend.close()
    assert backend._nccl.ended_by == ["abort"]


@pytest.mark.usefixtures("library")
def test_graphs_that_keep_the_communicator_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend()

    def shutdown() -> None:
        raise RuntimeError("Future for ProcessGroup shutdown timed out after 1000 ms")

    monkeypatch.setattr(backend._nccl, "shutdown", shutdown)
    with pytest.raises(FastverifyError, match="delete the CUDA graphs"):
        backend.close()


@pytest.mark.usefixtures("library")
def test_the_window_is_used_in_place_and_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "MemPool", lambda allocator: SimpleNamespace(allocator=allocator))
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool: torch.device("cpu"))
    backend = NcclWindowBackend(fake_group(device="cpu"))
    assert [symm for _, symm in backend._nccl.pools] == [True]
    x = torch.full((8,), 2.0)
    assert backend.all_reduce(x).tolist() == [3.0] * 8
    assert backend.window((8,), torch.float32).tolist() == [3.0] * 8
    inside = backend.window((2, 4), torch.float32).fill_(5)
    assert backend.all_reduce(inside).tolist() == [[6.0] * 4] * 2
    assert not backend.can_run(WINDOW_BYTES, torch.float32).ok
    nccl_group = backend._nccl
    backend.close()
    assert nccl_group.pools == []


@pytest.mark.usefixtures("library")
def test_reasons_against_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts())
    assert find_support(fake_group(), "nccl").ok
    assert find_support(fake_group(), "nccl_window").ok
    for name, value in (("NCCL_P2P_DISABLE", "1"), ("NCCL_CUMEM_ENABLE", "0"), ("NCCL_WIN_ENABLE", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert name in find_window_support(fake_group()).reason
    set_facts(monkeypatch, FakeFacts(atomics=False))
    assert find_support(fake_group(), "nccl").ok
    assert "NVLink" in find_support(fake_group(), "nccl_window").reason
    monkeypatch.setattr(FakeProcessGroupNCCL, "get_runtime_nccl_version", staticmethod(lambda: (2, 26, 2)))
    assert "2.27, got 2.26.2" in find_window_support(fake_group()).reason


@pytest.mark.usefixtures("library")
def test_bare_tree_ends_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    backend = open_backend()
    backend._nccl.error = BROADCAST_ERROR
    with pytest.raises(ConfigError, match="allreduce:tree") as caught:
        backend.broadcast(torch.zeros(4))
    assert "Broadcast" in str(caught.value)
    assert "2.28.9" in str(caught.value)


@pytest.mark.usefixtures("library")
def test_creating_it_makes_the_broadcast_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts())
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None, **options: torch.empty(*shape, **options).fill_(0))
    monkeypatch.setattr(NcclBackend, "_check", lambda self, x, out=None: None)
    backend = create(fake_group())
    assert isinstance(backend, NcclBackend)
    assert backend._nccl.ended_by == []
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    opened: list[FakeProcessGroupNCCL] = []

    def refuse(self: FakeProcessGroupNCCL, tensors: list[torch.Tensor], options: c10d.BroadcastOptions) -> None:
        opened.append(self)
        raise RuntimeError(BROADCAST_ERROR)

    monkeypatch.setattr(FakeProcessGroupNCCL, "broadcast", refuse)
    with pytest.raises(ConfigError, match="allreduce:tree"):
        create(fake_group())
    assert opened[0].ended_by == ["shutdown"]


@pytest.mark.usefixtures("library")
def test_the_calls_of_servers_are_made_eagerly_and_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class FakeGraph:
        def capture_begin(self, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"  # NCCL's own threads must not end it

        def capture_end(self) -> None:
            ended.append("capture")
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.device("cpu"))
    backend = open_backend()
    backend._nccl.error = BROADCAST_ERROR
    outcomes = check_server_calls(backend, torch.device("cpu"))
    assert [(outcome.call, outcome.captured) for outcome in outcomes] == [
        ("broadcast", False),
        ("all_gather", False),
        ("broadcast", True),
        ("all_gather", True),
    ]
    assert not any(outcome.ok for outcome in outcomes)
    assert all(("previous error" in outcome.capture_error) == outcome.captured for outcome in outcomes)
    assert len(ended) == 2


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (DUPLICATE_ERROR, UnsupportedError, "a GPU per rank"),
        (ABORTED_ERROR, CommTimeoutError, "one of them is late"),
        ("NCCL error\nLast error:\nCuda failure 'out of memory'", FastverifyError, "out of memory"),
    ],
)
def test_errors_become_ours(text: str, kind: type[Exception], words: str) -> None:
    group = fake_group(device="cpu")
    error = explain_nccl_error(RuntimeError(text), "an all-reduce", (2, 28, 9), PeerProcesses((1, 1)), group)
    assert type(error) is kind
    assert words in str(error)


def test_the_last_error_is_found() -> None:
    assert find_last_error(BROADCAST_ERROR).startswith("No algorithm/protocol available")
    assert find_last_error("one line") == "one line"
    assert find_last_error("") == "nothing"
