"""The mapping that several processes share, with a fake driver in place of CUDA's pinning."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.cuda.host_memory import HostMemory, find_room
from fastverify.comm.group import create_group
from fastverify.errors import FastverifyError
from tests.comm.cuda.fake_drivers import FakeHostDriver
from tests.ranks import run_ranks

INBOX_BYTES = 5000
ALIGNED_BYTES = 2 << 20


@pytest.mark.ranks
def test_what_one_rank_writes_the_others_read(tmp_path: Path) -> None:
    run_ranks(write_to_everybody, 3, tmp_path)
    assert not list(tmp_path.iterdir())


def fill_with(value: int) -> Callable[[torch.Tensor], object]:
    return lambda inbox: inbox.fill_(value)


def write_to_everybody(rank: int, world_size: int, rendezvous: str, folder: Path) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    driver = FakeHostDriver(offset=1 << 40)
    memory = HostMemory(group, INBOX_BYTES, -1, fill_with(rank + 1), key="host/1", driver=driver, folder=folder)
    assert not list(folder.iterdir()), "the file has lost its name once everybody has mapped it"
    ((address, num_bytes),) = driver.pinned.items()
    assert num_bytes == memory.num_bytes == 3 * ALIGNED_BYTES
    assert memory.addresses == [address + (1 << 40) + peer * ALIGNED_BYTES for peer in range(3)]
    assert len(memory.placements) == 3
    whole = memory._bytes
    assert whole is not None
    for peer in range(3):
        inbox = whole[peer * ALIGNED_BYTES :][: INBOX_BYTES + 1]
        assert inbox.tolist() == [peer + 1] * INBOX_BYTES + [0]
    exchange(group, b"all have looked")
    for peer in range(3):
        whole[peer * ALIGNED_BYTES + rank] = 100 + rank
    exchange(group, b"all have written")
    assert whole[rank * ALIGNED_BYTES :][:4].tolist() == [100, 101, 102, rank + 1]
    memory.close()
    memory.close()
    assert not driver.pinned


@pytest.mark.ranks
def test_a_rank_that_cannot_pin_stops_everybody(tmp_path: Path) -> None:
    messages = run_ranks(fail_to_pin, 2, tmp_path)
    assert messages[0] == messages[1]
    assert "pinning 4 MB of host memory failed on rank(s) 1 of 2" in messages[0]
    assert "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY" in messages[0]
    assert not list(tmp_path.iterdir())


def fail_to_pin(rank: int, world_size: int, rendezvous: str, folder: Path) -> str:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    driver = FakeHostDriver(fails=rank == 1)
    with pytest.raises(FastverifyError) as caught:
        HostMemory(group, INBOX_BYTES, -1, fill_with(0), key="host/1", driver=driver, folder=folder)
    assert not driver.pinned
    return str(caught.value)


def test_too_little_shared_memory_is_told_with_numbers(tmp_path: Path) -> None:
    assert find_room(1, tmp_path).ok
    room = find_room(1 << 60, tmp_path)
    assert not room.ok
    assert "are needed; in a container, raise --shm-size" in room.reason
    assert "there is no" in find_room(1, tmp_path / "missing").reason


@pytest.mark.ranks
def test_a_folder_without_room_stops_everybody() -> None:
    messages = run_ranks(want_too_much, 2)
    assert messages[0] == messages[1]
    assert "free and" in messages[0]


def want_too_much(rank: int, world_size: int, rendezvous: str) -> str:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    with pytest.raises(FastverifyError) as caught:
        HostMemory(group, 1 << 50, -1, fill_with(0), key="host/1", driver=FakeHostDriver())
    return str(caught.value)
