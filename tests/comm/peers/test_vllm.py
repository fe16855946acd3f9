"""The adapter's logic over a fake of vLLM's class, with the signatures of vLLM 0.24. Nothing here runs vLLM."""

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch

from fastverify.comm.peers import vllm
from fastverify.comm.peers.vllm import VllmBackend, create, fill_pointer_table, find_support
from fastverify.errors import EnvironmentMissingError, UnsupportedError
from tests.comm.fake_gpus import FakeFacts, fake_group, put_gpu_calls_aside, set_facts

BUFFERS = [0x7F0000000000, 0x7F1000000000]
NUM_SLOTS = 64
MODULE = "vllm.distributed.device_communicators.custom_all_reduce"


class FakeCustomAllreduce:
    """Rank 0 of two; the other rank holds ones. `rank_data` is laid out as the C++ code does."""

    disabled = False

    def __init__(self, group: Any, device: Any, max_size: int = 8192 * 1024, symm_mem_enabled: bool = False) -> None:
        assert os.environ["VLLM_SKIP_P2P_CHECK"] == "1"
        self.max_size = max_size
        self.buffer_ptrs = list(BUFFERS)
        table = torch.zeros(NUM_SLOTS, 8, dtype=torch.int64)
        table[0, :2] = torch.tensor(BUFFERS)
        self.rank_data = table.view(torch.uint8).view(-1)
        self.num_closed = 0

    def all_reduce(
        self, inp: torch.Tensor, *, out: torch.Tensor | None = None, registered: bool = False
    ) -> torch.Tensor:
        assert not registered
        assert out is not None
        return out.copy_((inp.float() + 1).to(inp.dtype))

    def close(self) -> None:
        self.num_closed += 1


class LateCustomAllreduce(FakeCustomAllreduce):
    """As vLLM 0.33: disabled until `finalize_p2p` has allocated the buffers."""

    def __init__(self, group: Any, device: Any, max_size: int = 8192 * 1024, symm_mem_enabled: bool = False) -> None:
        self.disabled = True
        self._arguments = (group, device, max_size)

    def finalize_p2p(self) -> None:
        super().__init__(*self._arguments)
        self.disabled = False


class DisabledCustomAllreduce(FakeCustomAllreduce):
    disabled = True


def install(monkeypatch: pytest.MonkeyPatch, fake: type, name: str = "CustomAllreduce") -> None:
    parts = MODULE.split(".")
    for count in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:count]))
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    setattr(sys.modules[MODULE], name, fake)
    monkeypatch.setattr(vllm, "open_torch_group", lambda group, library: object())


@pytest.mark.parametrize("fake", [FakeCustomAllreduce, LateCustomAllreduce])
def test_sums_in_and_out_of_place(fake: type, monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    install(monkeypatch, fake)
    backend = VllmBackend(fake_group(device="cpu"))
    x = torch.arange(16, dtype=torch.bfloat16)
    expected = x + 1
    assert torch.equal(backend.all_reduce_out(x, torch.empty_like(x)), expected)
    assert backend.all_reduce(x) is x
    assert torch.equal(x, expected)
    assert "VLLM_SKIP_P2P_CHECK" not in os.environ
    backend.close()
    assert backend._library.num_closed == 1


def test_every_slot_of_the_table_leads_to_the_registered_buffer() -> None:
    table = torch.zeros(NUM_SLOTS, 8, dtype=torch.int64)
    table[0, :2] = torch.tensor(BUFFERS)
    assert fill_pointer_table(table.view(torch.uint8).view(-1), BUFFERS, 2) == NUM_SLOTS - 1
    assert (table == table[0]).all()


def test_another_layout_of_the_table_is_refused() -> None:
    table = torch.zeros(NUM_SLOTS * 64, dtype=torch.uint8)
    with pytest.raises(UnsupportedError, match="lays it out differently"):
        fill_pointer_table(table, BUFFERS, 2)
    assert not table.any()


def test_captured_calls_are_counted_against_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = put_gpu_calls_aside(monkeypatch)
    install(monkeypatch, FakeCustomAllreduce)
    backend = VllmBackend(fake_group(device="cpu"))
    x = torch.zeros(16)
    capturing.now = True
    for _ in range(NUM_SLOTS - 1):
        backend.all_reduce(x)
    with pytest.raises(UnsupportedError, match=f"captured {NUM_SLOTS - 1} times"):
        backend.all_reduce(x)
    capturing.now = False
    backend.all_reduce(x)
    backend.close()


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = VllmBackend.limits
    assert limits.check(8, torch.bfloat16).ok
    assert "multiples of 16" in limits.check(7, torch.bfloat16).reason
    assert not limits.check(4 * 1024 * 1024, torch.bfloat16).ok  # vLLM wants less than its buffer
    assert limits.check(4 * 1024 * 1024 - 8, torch.bfloat16).ok


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts(num_gpus=4))
    assert find_support(fake_group()).reason == "the package vllm is not installed"
    install(monkeypatch, FakeCustomAllreduce)
    assert find_support(fake_group()).ok
    assert "2, 4, 6 or 8" in find_support(fake_group(3)).reason
    set_facts(monkeypatch, FakeFacts(num_gpus=4, atomics=False))
    assert find_support(fake_group(2)).ok
    assert "NVLink" in find_support(fake_group(4)).reason
    set_facts(monkeypatch, FakeFacts(num_gpus=4, reach=False))
    assert "reach" in find_support(fake_group(2)).reason
    with pytest.raises(EnvironmentMissingError, match="vllm backend cannot run"):
        create(fake_group(2))


def test_a_library_that_turns_itself_off_or_cannot_be_imported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_calls_aside(monkeypatch)
    install(monkeypatch, DisabledCustomAllreduce)
    with pytest.raises(EnvironmentMissingError, match="turned its custom all-reduce off"):
        VllmBackend(fake_group(device="cpu"))
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(EnvironmentMissingError, match="cannot be imported"):
        VllmBackend(fake_group(device="cpu"))
