import os
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from fastverify.comm import group as group_module
from fastverify.comm.communicator import create_communicator
from fastverify.comm.group import Group, close_group, create_group
from fastverify.errors import CommTimeoutError, ConfigError
from tests.ranks import RankFailedError, run_ranks


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_rank_must_be_in_the_world(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match="0 <= rank < world_size"):
        create_group(rank, world_size)


def test_a_group_of_several_needs_a_place_to_meet() -> None:
    with pytest.raises(ConfigError, match="got None"):
        create_group(0, 2)
    with pytest.raises(ConfigError, match="got 'udp://x'"):
        create_group(0, 2, "udp://x")
    with pytest.raises(ConfigError, match="torch_group"):
        Group(0, 2, None, "name", 1.0, ())
    with pytest.raises(ConfigError, match="timeout_s"):
        create_group(0, 1, timeout_s=-1.0)


def test_missing_ranks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "_RENDEZVOUS_TIMEOUT_S", 0.2)
    with pytest.raises(CommTimeoutError, match=r"rank\(s\) \[0, 2\] of 3"):
        create_group(1, 3, f"file://{tmp_path}/meet")


@pytest.mark.ranks
def test_ranks_meet_over_tcp_and_one_address_serves_many_groups() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answers = run_ranks(meet_over_tcp, 2, port)
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1], "two groups have two names"


def meet_over_tcp(rank: int, world_size: int, rendezvous: str, port: int) -> tuple[str, str]:
    first = create_group(rank, world_size, f"tcp://127.0.0.1:{port}", timeout_s=10)
    # A store that the caller owns, as an engine does that has one already.
    store = TCPStore("127.0.0.1", port, is_master=False)
    second = create_group(rank, world_size, store, timeout_s=10)
    for group in (first, second):
        assert create_communicator(group, "gloo").all_reduce(torch.ones(3)).tolist() == [2.0] * 3
    for group in (first, second):
        close_group(group)
    return first.name, second.name


@pytest.mark.ranks
def test_the_first_failing_rank_is_reported_with_its_traceback() -> None:
    with pytest.raises(RankFailedError, match="rank 1 failed") as caught:
        run_ranks(fail_on_rank_1, 2)
    assert "the reason" in str(caught.value)


def fail_on_rank_1(rank: int, world_size: int, rendezvous: str) -> None:
    if rank == 1:
        raise ValueError("the reason")
    create_communicator(create_group(rank, world_size, rendezvous), "gloo")


@pytest.mark.ranks
def test_a_rank_that_hangs_is_reported_at_the_deadline() -> None:
    with pytest.raises(RankFailedError, match=r"ranks \[0\] still ran"):
        run_ranks(hang_on_rank_0, 2, timeout_s=2.0)


def hang_on_rank_0(rank: int, world_size: int, rendezvous: str) -> None:
    if rank == 0:
        time.sleep(60)


@pytest.mark.ranks
def test_a_rank_that_dies_while_connecting_is_named() -> None:
    run_ranks(die_while_connecting, 3, killed=(1,))


def die_while_connecting(rank: int, world_size: int, rendezvous: str) -> None:
    if rank == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_module, "_connect", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            create_group(rank, world_size, rendezvous, timeout_s=20)
    with pytest.raises(CommTimeoutError, match="rank 1 ended"):
        create_group(rank, world_size, rendezvous, timeout_s=2)
    time.sleep(1.0)  # leaving at once would make this rank a dead one in the eyes of the other
