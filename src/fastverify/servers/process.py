"""One server process: its own process group, its output in a file, waited for until healthy, ended without leftovers.

The group is led by guard.py, which ends the server when this interpreter goes away, however it goes. Nothing outside
the group is ever signalled. Knows neither flags nor metrics: that is the business of builtin.py and its neighbours.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from fastverify.errors import ServerStartError
from fastverify.servers import guard

logger = logging.getLogger(__name__)

# Arbitrary: long enough to finish a running cycle and close the ranks, short beside a trial.
STOP_GRACE_S = 10.0
# Measured: a health request costs a loaded server well under a millisecond; finer polling gains nothing.
POLL_S = 0.05


class ServerProcess:
    """A started server. `stop` ends it and everything in its group; the interpreter's exit does the same."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log_path: Path, *, grace_s: float = STOP_GRACE_S
    ) -> None:
        self.argv = tuple(argv)
        self.log_path = log_path
        self._grace_s = grace_s
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(grace_s), *self.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )
        atexit.register(self.stop)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal number where a signal ended it."""
        return self._guard.poll()

    def is_alive(self) -> bool:
        """Whether the server process runs."""
        return self.exit_code is None

    def log_text(self) -> str:
        """Everything written so far; bytes that are no UTF-8 are replaced."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self, num_lines: int = 40) -> str:
        """The last lines written."""
        return "\n".join(self.log_text().splitlines()[-num_lines:])

    def wait_until_healthy(self, find_url: Callable[[str], str | None], health_path: str, timeout_s: float) -> str:
        """URL of the server once its health path answers 200; `find_url` gets the log so far.

        Raises: ServerStartError when the process ends or the time is over; the process is stopped then.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                if not self.is_alive():
                    raise self._start_error(f"ended with exit code {self.exit_code} before it was healthy")
                url = find_url(self.log_text())
                if url is not None and _is_healthy(url + health_path):
                    return url
                time.sleep(POLL_S)
            raise self._start_error(f"was not healthy within {timeout_s:g} s")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """TERM, grace, KILL. Returns when nothing of the group is left; calling twice is harmless."""
        atexit.unregister(self.stop)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            self._guard.wait(timeout=self._grace_s + 5.0)
        except subprocess.TimeoutExpired:
            logger.warning("%s and its guard did not end in time; the group is killed.", self.argv[0])
        finally:
            self._kill_group()

    def _kill_group(self) -> None:
        if self._guard.poll() is None:
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()

    def _start_error(self, what: str) -> ServerStartError:
        tail = self.log_tail() or "(the log is empty)"
        return ServerStartError(
            f"a server must become healthy after its launch, but `{' '.join(self.argv)}` {what}. "
            f"The end of its log ({self.log_path}):\n{tail}"
        )


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
