"""Slabs of three processes over a fake driver: who maps what, what is released when, and what a failure leaves."""

import pytest

from fastverify.comm.cuda.ipc import PeerMemory
from fastverify.comm.group import Group, create_group
from fastverify.errors import ConfigError, EnvironmentMissingError, FastverifyError
from tests.comm.cuda.fake_drivers import FakeSlabDriver
from tests.ranks import run_ranks


@pytest.mark.ranks
def test_slabs_are_mapped_by_rank_and_freed_last() -> None:
    addresses = run_ranks(map_slabs, 3)
    for rank in range(3):
        own = [addresses[peer][peer] for peer in range(3)]
        assert addresses[rank] == [
            own[peer] if peer == rank else 10 * own[peer] + 1000 * (rank + 1) for peer in range(3)
        ]


def map_slabs(rank: int, world_size: int, rendezvous: str) -> list[int]:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    driver = FakeSlabDriver(1000 * (rank + 1))
    filled: list[int] = []
    memory = PeerMemory(group, 100, filled.append, key="push/1", driver=driver)
    addresses = memory.addresses
    assert filled == [addresses[rank]]
    memory.close()
    memory.close()
    assert driver.log == ["allocate", "export", "open", "open", "close", "close", "free"]
    assert not driver.live
    return addresses


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("call", "status", "error", "text"),
    [
        (
            "open",
            "CUDA_ERROR_MAP_FAILED",
            EnvironmentMissingError,
            "rank 1 must map the GPU memory of rank 0, open said",
        ),
        ("allocate", "CUDA_ERROR_OUT_OF_MEMORY", FastverifyError, "allocating 2097152 bytes of GPU memory per rank"),
        ("export", "CUDA_ERROR_INVALID_VALUE", FastverifyError, "refused export: CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_failure_on_one_rank_is_everybody_s_and_leaves_nothing(
    call: str, status: str, error: type[FastverifyError], text: str
) -> None:
    messages = run_ranks(fail_to_map, 2, call, status, error)
    assert messages[0] == messages[1]
    assert text in messages[0]
    assert status in messages[0]
    assert "rank(s) 1 of 2" in messages[0]


def fail_to_map(
    rank: int, world_size: int, rendezvous: str, call: str, status: str, error: type[FastverifyError]
) -> str:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    driver = FakeSlabDriver(1000 * (rank + 1), fails={call: status} if rank == 1 else {})
    with pytest.raises(error) as caught:
        PeerMemory(group, 100, lambda address: None, key="push/1", driver=driver)
    assert not driver.live
    return str(caught.value)


def test_ranks_of_one_process_are_refused() -> None:
    group = Group(0, 1, None, "name", 1.0, (7,))
    object.__setattr__(group, "world_size", 2)
    object.__setattr__(group, "process_ids", (7, 7))
    with pytest.raises(ConfigError, match="VirtualRanks"):
        PeerMemory(group, 100, lambda address: None, key="push/1", driver=FakeSlabDriver(1))


@pytest.mark.ranks
def test_memory_that_a_living_peer_holds_is_not_freed() -> None:
    run_ranks(close_alone, 2)


def close_alone(rank: int, world_size: int, rendezvous: str) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    driver = FakeSlabDriver(1000 * (rank + 1))
    memory = PeerMemory(group, 100, lambda address: None, key="push/1", driver=driver)
    if rank == 0:
        memory.close(timeout_s=0.1)
        assert driver.log[-1] == "close"
        assert len(driver.live) == 1
    group.store.set(f"done/{rank}", "")  # type: ignore[union-attr]
    group.store.wait(["done/0", "done/1"])  # type: ignore[union-attr]
    memory.close()
    if rank == 1:
        assert not driver.live
