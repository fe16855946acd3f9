"""Process groups: waited for, ended without leftovers, also when the owner is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fastverify.errors import ServerStartError
from fastverify.servers.builtin import find_listening_url
from fastverify.servers.process import ServerProcess
from tests.servers.fake_server import FakeBehaviour, FakeServer

pytestmark = pytest.mark.server

# Prints its own and a grandchild's process id, then sleeps; the grandchild ignores TERM.
PARENT = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed', flush=True); time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(tmp_path: Path, *argv: str, grace_s: float = 0.5) -> ServerProcess:
    return ServerProcess(argv, {}, tmp_path / "logs" / "server.log", grace_s=grace_s)


def start_parent(tmp_path: Path) -> tuple[ServerProcess, int]:
    process = start(tmp_path, sys.executable, "-S", "-c", PARENT)
    wait_until(lambda: "armed" in process.log_text() and "child" in process.log_text())
    return process, int(process.log_text().split("child ")[1].split()[0])


def test_stop_ends_grandchildren_that_ignore_term(tmp_path: Path) -> None:
    process, grandchild = start_parent(tmp_path)
    process.stop()
    assert process.exit_code == 128 + signal.SIGTERM
    wait_until(lambda: not psutil.pid_exists(grandchild))


def test_server_that_dies_takes_its_group_along(tmp_path: Path) -> None:
    process, grandchild = start_parent(tmp_path)
    os.kill(psutil.Process(grandchild).ppid(), signal.SIGKILL)
    wait_until(lambda: not process.is_alive())
    assert process.exit_code == 128 + signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(grandchild))
    process.stop()


def test_server_that_ignores_term_is_killed_after_the_grace(tmp_path: Path) -> None:
    server = FakeServer(lambda settings: FakeBehaviour(ignore_term=True), grace_s=0.3)
    running = server.launch(server.launch_spec({}), tmp_path / "server.log")
    start_s = time.monotonic()
    running.stop()
    assert 0.3 <= time.monotonic() - start_s < 4
    assert running.exit_code() == 128 + signal.SIGKILL


OWNER = """
import psutil, sys, time
from pathlib import Path
from fastverify.servers.process import ServerProcess
ServerProcess(["sleep", "600"], dict(), Path(sys.argv[1]), grace_s=0.2)
while not any(process.name() == "sleep" for process in psutil.Process().children(recursive=True)):
    time.sleep(0.01)
print(*[process.pid for process in psutil.Process().children(recursive=True)], flush=True)
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", "raise KeyboardInterrupt", ""])
def test_server_ends_with_its_owner(tmp_path: Path, end: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER + end, str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    family = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(family) == 2, "guard and server"
    if "sleep" in end:
        owner.kill()
    owner.wait(timeout=15)
    owner.stdout.close()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in family))


def test_start_errors_carry_the_reason_and_the_log(tmp_path: Path) -> None:
    process = start(tmp_path, sys.executable, "-S", "-c", "import sys; sys.exit('no memory left')")
    with pytest.raises(ServerStartError, match="exit code 1 before it was healthy(.|\n)*no memory left"):
        process.wait_until_healthy(find_listening_url, "/health", 20)


def test_missing_command_is_a_start_error(tmp_path: Path) -> None:
    process = start(tmp_path, "no-such-server")
    with pytest.raises(ServerStartError, match="cannot start no-such-server: No such file"):
        process.wait_until_healthy(find_listening_url, "/health", 20)


def test_hang_at_start_is_ended_at_the_time_limit(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    server = FakeServer(lambda settings: FakeBehaviour(hang_at_start=True), start_timeout_s=0.5)
    with pytest.raises(ServerStartError, match=r"was not healthy within 0.5 s(.|\n)*fake: starting"):
        server.launch(server.launch_spec({}), tmp_path / "server.log")
    assert set(psutil.Process().children(recursive=True)) <= before


def test_health_is_waited_for_not_only_the_listening_line(tmp_path: Path) -> None:
    server = FakeServer(lambda settings: FakeBehaviour(health_delay_s=0.6))
    start_s = time.monotonic()
    with server.launch(server.launch_spec({}), tmp_path / "server.log"):
        assert time.monotonic() - start_s >= 0.6


def test_environment_of_the_spec_reaches_the_server(tmp_path: Path) -> None:
    code = "import os; print('value', os.environ['NCCL_ALGO'], os.environ['PATH'] != '')"
    process = ServerProcess([sys.executable, "-S", "-c", code], {"NCCL_ALGO": "Tree"}, tmp_path / "server.log")
    wait_until(lambda: not process.is_alive())
    assert process.log_text() == "value Tree True\n"
    process.stop()
