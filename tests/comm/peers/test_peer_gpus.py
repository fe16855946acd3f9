import pytest

from fastverify.comm.gpu.backends import GPU_BACKENDS
from fastverify.comm.group import create_group
from fastverify.comm.peers.peer_gpus import (
    DriverFacts,
    check_capability,
    check_native_atomics,
    check_own_gpus,
    check_peer_access,
)
from tests.comm.fake_gpus import GPUS, FakeFacts, fake_group, set_facts

PEERS = [name for name, spec in GPU_BACKENDS.items() if not spec.module.startswith("fastverify.comm.cuda")]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_says_why_it_cannot_run_without_a_gpu(name: str) -> None:
    support = GPU_BACKENDS[name].find_support(create_group(0, 1))
    assert not support.ok
    assert support.reason


@pytest.mark.parametrize("name", PEERS)
def test_two_ranks_on_one_gpu_are_refused_by_rank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts())
    support = GPU_BACKENDS[name].find_support(fake_group(4, gpus=("GPU-a", "GPU-b", "GPU-b", "GPU-c")))
    assert not support.ok
    # A torch without NCCL has a reason of its own that comes first.
    assert "[1, 2]" in support.reason or "without NCCL" in support.reason


def test_lost_atomics_are_named_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts(atomics=False))
    assert "ranks 0 and 1" in check_native_atomics(fake_group(), "it").reason


def test_what_nobody_knows_about_atomics_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts(atomics=None))
    assert "cuda-bindings" in check_native_atomics(fake_group(), "it").reason
    set_facts(monkeypatch, FakeFacts(num_gpus=1))
    assert "GPU-b" in check_native_atomics(fake_group(), "it").reason


def test_peer_access_of_a_hidden_gpu_is_left_to_the_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts(num_gpus=1, reach=False))
    assert check_peer_access(fake_group(), "it").ok
    set_facts(monkeypatch, FakeFacts(reach=False))
    assert "ranks 0 and 1" in check_peer_access(fake_group(), "it").reason


def test_architectures_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, FakeFacts(sm=(12, 0)))
    assert "SM120" in check_capability(fake_group(), "it", (9, 10)).reason
    assert check_capability(fake_group(), "it", (9, 12)).ok
    assert check_own_gpus(fake_group(1), "it").reason.endswith("got 1")
    assert check_own_gpus(fake_group(8, gpus=GPUS), "it").ok


def test_without_a_gpu_the_driver_is_not_asked_further() -> None:
    facts = DriverFacts()
    if facts.is_available():
        pytest.skip("there is a GPU")
    assert facts.uuids() == []
