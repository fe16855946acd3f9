"""What can be held of the symmetric memory adapter without a GPU: reasons, alignment, and torch's signatures."""

import pytest
import torch
import torch.distributed._symmetric_memory  # noqa: F401 - it declares the operators
from torch._C import _distributed_c10d as c10d

from fastverify.comm.peers.library_env import DISABLE_MULTICAST
from fastverify.comm.peers.symm_mem import SymmMemBackend, _is_aligned, find_support
from tests.comm.fake_gpus import FakeFacts, fake_group, set_facts

NAMES = ("symm_mem_one_shot", "symm_mem_two_shot", "symm_mem_multimem")


@pytest.fixture(autouse=True)
def cuda_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d._SymmetricMemory, "get_backend", staticmethod(lambda device: "CUDA"))
    monkeypatch.delenv(DISABLE_MULTICAST, raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_nvlink_is_needed_since_signals_are_remote_atomics(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts())
    assert find_support(fake_group(), name).ok
    set_facts(monkeypatch, FakeFacts(atomics=False))
    reason = find_support(fake_group(), name).reason
    assert "remote atomics" in reason
    assert "no NVLink" in reason


def test_multimem_needs_multicast_that_nobody_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts(multicast=False))
    assert "does not offer" in find_support(fake_group(), "symm_mem_multimem").reason
    assert find_support(fake_group(), "symm_mem_one_shot").ok
    set_facts(monkeypatch, FakeFacts())
    monkeypatch.setenv(DISABLE_MULTICAST, "1")
    assert DISABLE_MULTICAST in find_support(fake_group(), "symm_mem_multimem").reason
    assert find_support(fake_group(), "symm_mem_two_shot").ok


def test_another_allocator_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts())
    monkeypatch.setattr(c10d._SymmetricMemory, "get_backend", staticmethod(lambda device: "NVSHMEM"))
    assert "NVSHMEM" in find_support(fake_group(), "symm_mem_one_shot").reason


def test_limits_name_the_dtypes() -> None:
    assert SymmMemBackend.limits.check(1, torch.bfloat16).ok
    assert "float32, bfloat16, got torch.float16" in SymmMemBackend.limits.check(8, torch.float16).reason


def test_only_whole_aligned_messages_skip_the_padding() -> None:
    whole = torch.zeros(64, dtype=torch.bfloat16)
    assert _is_aligned(whole[:16])
    assert not _is_aligned(whole[:15])
    assert not _is_aligned(whole[2:18])


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("one_shot_all_reduce_copy_out", ["symm_buffer", "local_input", "reduce_op", "group_name", "out"]),
        ("one_shot_all_reduce_out", ["input", "reduce_op", "group_name", "out"]),
        ("two_shot_all_reduce_", ["input", "reduce_op", "group_name"]),
        ("multimem_all_reduce_", ["input", "reduce_op", "group_name"]),
    ],
)
def test_torch_still_has_the_operators_as_they_are_called(operator: str, arguments: list[str]) -> None:
    schema = getattr(torch.ops.symm_mem, operator).default._schema
    assert [argument.name for argument in schema.arguments] == arguments


def test_torch_finds_a_group_that_is_in_no_default_group() -> None:
    store = c10d.HashStore()
    group = c10d.ProcessGroup(store, 0, 1)
    group._set_group_name("fastverify-test")
    c10d._register_process_group("fastverify-test", group)
    assert c10d._resolve_process_group("fastverify-test").size() == 1
    c10d._unregister_process_group("fastverify-test")
    with pytest.raises((RuntimeError, ValueError)):
        c10d._resolve_process_group("fastverify-test")
