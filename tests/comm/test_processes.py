import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastverify.comm import processes
from fastverify.comm.processes import PeerProcesses


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_an_ended_process_is_found(with_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_pidfd:
        monkeypatch.setattr(processes, "_open_pidfd", lambda process_id: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        peers = PeerProcesses([os.getpid(), child.pid])
        assert peers.wait_for_dead(timeout_s=0.05) == []
        child.kill()
        if not with_pidfd:
            child.wait()  # signal 0 cannot tell a zombie from the living
        assert peers.wait_for_dead(timeout_s=5.0) == [1]
    peers.close()
    peers.close()


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process_id: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(processes, "_open_pidfd", lambda process_id: None)
    monkeypatch.setattr(os, "kill", refuse)
    assert PeerProcesses([1]).find_dead() == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no pidfd")
def test_descriptors_end_with_the_object_where_nobody_closes_it() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        PeerProcesses([os.getpid()])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
