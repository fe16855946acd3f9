"""The rank processes as their owner sees them: start, pipes, death, end. Imports no torch.

Each rank gets a pipe to the owner, a lifeline that closes when the owner is gone, and rank 0 one pipe to every other
rank. Ranks are found dead by the end of their pipe, which the kernel closes however they end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait

from fastverify.engine.commands import Command, Failed, Report
from fastverify.engine.config import EngineConfig
from fastverify.engine.rank_spec import RankSpec

# Arbitrary: how long other ranks' reports are awaited once one is dead, to find the first cause.
_BLAME_WAIT_S = 1.0
# Arbitrary: a rank that was told to end and does not is killed after this time.
_END_WAIT_S = 5.0


class RankGroup:
    """Running rank processes. `end` leaves none behind."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder = tempfile.mkdtemp(prefix="fastverify-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []
        lifeline_read, self._lifeline = os.pipe()
        follower_pipes = [Pipe(duplex=False) for _ in range(config.tp_size - 1)]
        try:
            for rank in range(config.tp_size):
                self._start_rank(rank, config, lifeline_read, follower_pipes)
        finally:
            os.close(lifeline_read)
            for pipe in follower_pipes:
                for end in pipe:
                    end.close()

    def _start_rank(
        self, rank: int, config: EngineConfig, lifeline_fd: int, follower_pipes: list[tuple[Connection, Connection]]
    ) -> None:
        ours, theirs = Pipe()
        spec = RankSpec(
            rank=rank,
            rendezvous=f"file://{self._folder}/rendezvous",
            config=config.to_dict(),
            owner_fd=theirs.fileno(),
            lifeline_fd=lifeline_fd,
            leader_fd=follower_pipes[rank - 1][0].fileno() if rank > 0 else None,
            follower_fds=tuple(sender.fileno() for _, sender in follower_pipes) if rank == 0 else (),
        )
        command = [sys.executable, "-m", "fastverify.engine.rank_process", spec.to_json()]
        environment = {**os.environ, "OMP_NUM_THREADS": str(config.num_threads)}
        self._processes.append(subprocess.Popen(command, pass_fds=spec.fds, env=environment, stdin=subprocess.DEVNULL))
        theirs.close()
        self.connections.append(ours)

    def send(self, command: Command) -> None:
        """To rank 0, which forwards it. Raises BrokenPipeError when it is gone."""
        self.connections[0].send(command)

    def reports(self) -> Iterator[tuple[int, Report | None]]:
        """(rank, report) as they come; None once, when that rank has ended."""
        open_ranks = {connection: rank for rank, connection in enumerate(self.connections)}
        while open_ranks:
            for connection in wait(list(open_ranks)):
                assert isinstance(connection, Connection), "only connections were waited for"
                report = _receive(connection)
                yield open_ranks[connection], report
                if report is None:
                    del open_ranks[connection]

    def explain_death(self, failures: dict[int, Failed]) -> str:
        """Who died first and why, once `reports` has shown the end of a rank. `failures`: reports so far, extended."""
        self._collect(failures)
        causes = [rank for rank, failure in failures.items() if not failure.is_consequence]
        if causes:
            rank = causes[0]
            return f"rank {rank} ended with an error.\n{failures[rank].traceback}"
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is not None and rank not in failures:
                return f"rank {rank} {_describe_exit(code)}"
        rank, failure = next(iter(failures.items()), (0, None))
        return f"rank {rank} ended with an error.\n{failure.traceback if failure else 'It left no traceback.'}"

    def _collect(self, failures: dict[int, Failed]) -> None:
        """Wait a little for the reports of ranks that are just failing."""
        deadline = time.monotonic() + _BLAME_WAIT_S
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(0.01)
        for rank, connection in enumerate(self.connections):
            while rank not in failures and connection.poll(0):
                report = _receive(connection)
                if report is None:
                    break
                if isinstance(report, Failed):
                    failures[rank] = report

    def remove_rendezvous(self) -> None:
        """Delete the meeting place; the ranks have met."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self, *, gracefully: bool) -> None:
        """End every rank: wait for those that were told to, kill the others and what is left."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if gracefully:
            _wait_all(self._processes, _END_WAIT_S)
        _kill_all(self._processes)
        _wait_all(self._processes, _END_WAIT_S)
        self.remove_rendezvous()

    def close(self) -> None:
        """Close the pipes, once nobody reads them. The ranks have ended before."""
        for connection in self.connections:
            connection.close()


def _receive(connection: Connection) -> Report | None:
    try:
        report: Report = connection.recv()
    except (EOFError, ConnectionResetError):
        return None
    return report


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}. If you did not do that, the system may be out of memory."
    return f"ended with exit code {code} and no traceback."


def _kill_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()


def _wait_all(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.005)
