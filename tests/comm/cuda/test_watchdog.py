"""The watchdog over ranks that only say what they are told to: what it makes of a wait and of a death, and when."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fastverify.comm.cuda.watchdog import Watch, Watchdog
from fastverify.comm.group import Group
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import CommTimeoutError


@dataclass(frozen=True)
class FakeReport:
    peer: int
    epoch: int


class FakeRank:
    """Reports what the test puts there; counts the aborts."""

    def __init__(self) -> None:
        self.report: FakeReport | None = None
        self.aborts = 0
        self.looks = 0

    def status(self) -> FakeReport | None:
        self.looks += 1
        return self.report

    def abort(self) -> None:
        self.aborts += 1


@pytest.fixture
def peer() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input closes."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def make_group(peer: subprocess.Popen[bytes]) -> Group:
    group = Group(0, 1, None, "name", 0.5, (0,))
    changes = {"rank": 1, "world_size": 2, "process_ids": (peer.pid, peer.pid), "gpus": ("GPU-a", "GPU-b")}
    for name, value in changes.items():
        object.__setattr__(group, name, value)
    return group


def make_watch(peer: subprocess.Popen[bytes]) -> tuple[Watch, FakeRank]:
    rank = FakeRank()
    return Watch(make_group(peer), "push", rank, PeerProcesses((peer.pid,))), rank


def test_a_wait_that_ran_out_names_rank_peer_call_and_link(
    peer: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    watch, rank = make_watch(peer)
    watch.look()
    watch.check()
    rank.report = FakeReport(peer=0, epoch=17)
    with caplog.at_level(logging.ERROR):
        watch.look()
    with pytest.raises(CommTimeoutError) as caught:
        watch.check()
    assert "rank 1 waited 0.5 s for rank 0 in call 17 over push memory from GPU GPU-a to GPU GPU-b" in str(caught.value)
    assert [record.getMessage() for record in caplog.records] == [str(caught.value)]
    assert rank.aborts == 1, "kernels queued behind the one that gave up must not wait as long again"
    watch.look()
    assert (rank.aborts, rank.looks) == (1, 2), "the first failure stays"


def test_a_dead_peer_ends_the_wait_within_a_few_looks(peer: subprocess.Popen[bytes]) -> None:
    watch, rank = make_watch(peer)
    watchdog = Watchdog(period_s=0.01)
    watchdog.add(watch)
    time.sleep(0.05)
    watch.check()
    peer.kill()
    start_s = time.monotonic()
    while rank.aborts == 0 and time.monotonic() - start_s < 5:
        time.sleep(0.005)
    assert time.monotonic() - start_s < 1
    with pytest.raises(
        CommTimeoutError, match="rank 0 ended while rank 1 of 2 had an all-reduce over push memory open"
    ):
        watch.check()
    watchdog.remove(watch)


def test_a_death_explains_a_wait_that_ran_out(peer: subprocess.Popen[bytes]) -> None:
    watch, rank = make_watch(peer)
    rank.report = FakeReport(peer=0, epoch=3)
    peer.kill()
    peer.wait()
    watch.look()
    with pytest.raises(CommTimeoutError, match=r"rank 0 ended .* open, in call 3\. Look for the traceback"):
        watch.check()


def test_the_thread_ends_with_the_last_watch_and_starts_again(peer: subprocess.Popen[bytes]) -> None:
    watchdog = Watchdog(period_s=0.01)
    before = threading.active_count()
    for _ in range(2):
        watches = [make_watch(peer) for _ in range(3)]
        for watch, _ in watches:
            watchdog.add(watch)
        time.sleep(0.1)
        assert threading.active_count() == before + 1
        assert all(rank.looks > 1 for _, rank in watches)
        for watch, _ in watches:
            watchdog.remove(watch)
            watchdog.remove(watch)
        deadline_s = time.monotonic() + 5
        while threading.active_count() > before and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert threading.active_count() == before
