"""Keeps one server from outliving the process that started it: `python guard.py COMMAND...`, run by process.py.

The guard leads the server's process group and reads a pipe from its owner. When the owner goes away, even by kill -9,
or closes the pipe on purpose, the server gets TERM and a grace (its children are its own to end in order), then the
whole group gets KILL. When the server ends by itself, what it left in the group is killed too, and the guard exits
with the server's code. Standard library only and nothing of fastverify, so that it starts in milliseconds.
"""

import os
import select
import signal
import subprocess
import sys
import time

POLL_S = 0.05


def main(arguments: list[str]) -> int:
    """Run the command until it ends or the owner's pipe closes. First argument: grace in seconds."""
    grace_s = float(arguments[0])
    # A signal to the group is for the server: the guard must outlive it. A handler, unlike SIG_IGN, is not inherited.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        server = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, close_fds=True)
    except OSError as error:
        sys.stderr.write(f"cannot start {arguments[1]}: {error.strerror}\n")
        return 127
    try:
        while server.poll() is None and not _owner_is_gone():
            pass
        if server.poll() is None:
            server.terminate()
            _wait(server, grace_s)
        return _shell_exit_code(server.poll())
    finally:
        _end_rest_of_group(server)


def _owner_is_gone() -> bool:
    readable, _, _ = select.select([0], [], [], POLL_S)
    return bool(readable) and os.read(0, 1) == b""


def _wait(server: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _shell_exit_code(code: int | None) -> int:
    """128 + signal number for a server that a signal ended, as shells report it; None is one we must still kill."""
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def _end_rest_of_group(server: subprocess.Popen[bytes]) -> None:
    """KILL everything in the group but the guard itself, which must still return the exit code."""
    own = os.getpid()
    for _ in range(20):
        others = [pid for pid in _group_members(os.getpgid(0)) if pid != own]
        if not others:
            return
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        server.poll()
        time.sleep(POLL_S)


def _group_members(group: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the start-up time
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:  # noqa: PTH123
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            # Fields after the command name: state, parent, group. A zombie (Z) needs no signal.
            if int(fields[2]) == group and fields[0] != "Z":
                members.append(int(name))
    return members


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
