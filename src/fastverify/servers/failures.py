"""Why a request got no answer, judged by the process behind it.

An ended process is a crash, a silent one a hang, anything else a plain ServerError. The tuner files its trials by
these classes, so no other place decides them. Each error carries the tail of the server's log.
"""

from __future__ import annotations

import time
from typing import Protocol

import httpx

from fastverify.errors import ServerCrashError, ServerError, ServerHangError

# Arbitrary: a connection breaks a moment before the process is reaped, and a failing server may drain first.
CRASH_SETTLE_S = 3.0


class ServerState(Protocol):
    """The part of a running server that tells a crash from a hang."""

    def is_alive(self) -> bool:
        """Whether its process runs."""
        ...

    def exit_code(self) -> int | None:
        """None while its process runs."""
        ...

    def log_tail(self, num_lines: int = 40) -> str:
        """The last lines that it wrote."""
        ...


def request_failure(server: ServerState, what: str, error: httpx.TransportError) -> ServerError:
    """The error for a request that ended without an answer."""
    if isinstance(error, httpx.TimeoutException) and server.is_alive():
        return ServerHangError(f"{what} got no answer in time while the process is alive. {_log_report(server)}")
    if ended_soon(server):
        return ServerCrashError(f"{what}: the server ended with exit code {server.exit_code()}. {_log_report(server)}")
    return ServerError(f"{what} failed while the process is alive: {error!r}. {_log_report(server)}")


def answer_failure(server: ServerState, what: str, status: int, text: str) -> ServerError:
    """The error for a request that was answered with an error; a server error before the end is a crash."""
    if status >= httpx.codes.INTERNAL_SERVER_ERROR and ended_soon(server):
        return ServerCrashError(
            f"{what} was answered with {status}, then the server ended with exit code {server.exit_code()}. "
            f"{_log_report(server)}"
        )
    return ServerError(f"{what} must be answered with 200, got {status}: {text}")


def ended_soon(server: ServerState) -> bool:
    """Whether the process ends within CRASH_SETTLE_S."""
    deadline = time.monotonic() + CRASH_SETTLE_S
    while server.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not server.is_alive()


def _log_report(server: ServerState) -> str:
    return f"The end of its log:\n{server.log_tail()}"
