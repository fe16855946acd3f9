"""Lanes: sets of rank processes, one per environment, so that one run compares settings that a process reads once.

A lane starts its ranks, asks all of them the same question and waits for every answer until a deadline. One that
raises, dies or does not answer is killed as a whole and says why in one sentence; other lanes never notice. Whoever
holds several lanes asks one at a time, so that only one works. It knows nothing of GPUs or timing: what a rank does is
its worker, an object whose methods are called by name.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fastverify.comm.bench.children import end_with_parent, shielded_from_interrupts
from fastverify.errors import ConfigError, EnvironmentMissingError, ShapeError, UnsupportedError, WorkerDiedError

SPAWN = multiprocessing.get_context("spawn")
_REFUSALS = (ConfigError, EnvironmentMissingError, ShapeError, UnsupportedError)
# Arbitrary: how long the other ranks may take to answer once one of them has failed; they mostly wait for it.
_GRACE_S = 2.0
_CLOSE_S = 10.0
_LOG_TAIL_BYTES = 4000


class Failure(Enum):
    """How a question ended without an answer. Only a lane whose ranks all refused still stands."""

    REFUSED = "refused"
    RAISED = "raised"
    ENDED = "ended"
    HUNG = "hung"


class LaneError(WorkerDiedError):
    """The text is one sentence; `details` holds tracebacks and what the ranks last printed."""

    def __init__(self, failure: Failure, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.failure = failure
        self.details = details


@dataclass(frozen=True)
class LaneSpec:
    """`open_worker(rank, folder)` runs in each process, after `env` is set; the folder is the lane's own, and empty."""

    name: str
    num_ranks: int
    open_worker: Callable[[int, str], Any]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Answer:
    """What came back from one rank; `failure` is None for a real answer."""

    rank: int
    failure: Failure | None
    value: Any
    details: str = ""


class Lane:
    """Running ranks of one spec. Raises LaneError where they do not start."""

    def __init__(self, spec: LaneSpec, *, timeout_s: float = 180.0, context: BaseContext = SPAWN) -> None:
        self.spec = spec
        self._folder = tempfile.TemporaryDirectory(prefix="fastverify-bench-")
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        try:
            with shielded_from_interrupts():
                for rank in range(spec.num_ranks):
                    self._start(context, rank)
            self._collect("start", timeout_s)
        except BaseException:
            self._kill()  # nobody has this lane to close it
            raise

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """The answers of all ranks, in rank order. Raises LaneError; the lane is then closed unless all refused."""
        for connection in self._connections:
            try:
                connection.send((method, arguments))
            except OSError:
                continue  # its end shows when its answer is read
        return self._collect(method, timeout_s)

    def close(self) -> None:
        """Let the workers free what they hold, then end the processes. Calling twice is harmless."""
        for connection in self._connections:
            try:
                connection.send(("close", ()))
            except OSError:
                continue
        deadline = time.monotonic() + _CLOSE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _start(self, context: BaseContext, rank: int) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(  # type: ignore[attr-defined]  # typeshed has it on each concrete context
            target=_serve, args=(self.spec, rank, self._folder.name, theirs), daemon=True
        )
        process.start()
        theirs.close()  # so that the end of the rank ends the pipe
        self._connections.append(ours)
        self._processes.append(process)

    def _collect(self, method: str, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        answers: list[_Answer] = []
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                answers.append(self._receive(connection, waiting.pop(connection)))
                if answers[-1].failure:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        if waiting or any(answer.failure for answer in answers):
            self._fail(method, answers, sorted(waiting.values()), timeout_s)
        return [answer.value for answer in sorted(answers, key=lambda answer: answer.rank)]

    def _receive(self, connection: Connection, rank: int) -> _Answer:
        try:
            failure, value, details = connection.recv()
        except (EOFError, OSError):
            process = self._processes[rank]
            process.join(_GRACE_S)
            return _Answer(rank, Failure.ENDED, f"the process ended with {_exit_text(process.exitcode)}")
        return _Answer(rank, failure, value, details)

    def _fail(self, method: str, answers: list[_Answer], missing: list[int], timeout_s: float) -> None:
        """Raise for the answer that tells most: a rank that ended makes others raise, and some wait for ever."""
        failures = [answer for answer in answers if answer.failure]
        refusals = [answer for answer in failures if answer.failure is Failure.REFUSED]
        if len(refusals) == len(self._processes):
            raise LaneError(Failure.REFUSED, refusals[0].value)
        details = "\n".join([answer.details for answer in failures if answer.details] + self._read_logs())
        self._kill()
        for kind in (Failure.ENDED, Failure.RAISED, Failure.REFUSED):
            for answer in failures:
                if answer.failure is kind:
                    failure = Failure.RAISED if kind is Failure.REFUSED else kind
                    raise LaneError(failure, f"rank {answer.rank} failed in {method}: {answer.value}", details)
        raise LaneError(Failure.HUNG, f"rank(s) {missing} did not end {method} within {timeout_s:g} s", details)

    def _read_logs(self) -> list[str]:
        logs = sorted(Path(self._folder.name).glob("*.log"))
        return [log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") for log in logs]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_CLOSE_S)
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        self._folder.cleanup()


def _exit_text(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def _serve(spec: LaneSpec, rank: int, folder: str, connection: Connection) -> None:
    """A rank's process: open the worker, then answer until the parent closes the pipe or says so."""
    end_with_parent()
    os.environ.update(spec.env)
    _send_output_to(Path(folder) / f"{rank}.log")
    opened: list[Any] = []
    if not _answer(connection, lambda: opened.append(spec.open_worker(rank, folder))):
        return
    method = ""
    while method != "close":
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        _answer(connection, partial(_ask, opened[0], method, arguments))


def _ask(worker: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(worker, method)(*arguments)


def _answer(connection: Connection, work: Callable[[], Any]) -> bool:
    """Send what `work` returns or raises; whether it returned."""
    message: tuple[Failure | None, Any, str]
    try:
        message = (None, work(), "")
    except _REFUSALS as error:
        message = (Failure.REFUSED, str(error), "")
    except Exception as error:  # noqa: BLE001 - the parent reports it, whatever it is
        message = (Failure.RAISED, _one_line(error), traceback.format_exc())
    connection.send(message)
    return message[0] is None


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'without a text'}"


def _send_output_to(path: Path) -> None:
    """What libraries print goes to a file: stdout is the benchmark's own, and a crash leaves its last words."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
