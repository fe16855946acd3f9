"""Starts the ranks of the all-reduce benchmark, follows their progress, and hands back rank 0's result.

It knows nothing of backends or timing; see cpu.py. A rank that raises an error of errors.py ends the run with that
error, any other with its traceback. Ranks end with the process that started them, however that ends.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.bench.children import end_with_parent, shielded_from_interrupts
from fastverify.comm.bench.cpu import BenchConfig, BenchResult, OnProgress, measure
from fastverify.comm.group import create_group
from fastverify.errors import FastverifyError, WorkerDiedError

_CONTEXT = multiprocessing.get_context("spawn")


def run_bench(config: BenchConfig, on_progress: OnProgress = lambda done, total: None) -> BenchResult:
    """Measure on `config.world_size` new processes. Raises WorkerDiedError with a failing rank's traceback."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(config.world_size)]
        processes = [
            _CONTEXT.Process(target=_run_rank, args=(rank, config, folder, sender), daemon=True)
            for rank, (_, sender) in enumerate(pipes)
        ]
        try:
            with shielded_from_interrupts():
                for process, (_, sender) in zip(processes, pipes, strict=True):
                    process.start()
                    sender.close()  # so that the end of the rank ends the pipe
            return _collect([receiver for receiver, _ in pipes], on_progress)
        finally:
            _stop(processes)
            for receiver, _ in pipes:
                receiver.close()


def _run_rank(rank: int, config: BenchConfig, folder: str, sender: Connection) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    send: Callable[[tuple[str, Any]], None] = sender.send
    try:
        groups = {
            name: create_group(rank, config.world_size, (Path(folder) / name).as_uri())
            for name in (*config.backends, "align")
        }
        result = measure(groups, config, lambda done, total: send(("progress", (done, total))))
        send(("result", result))
    except FastverifyError as error:
        send(("refusal", error))
    except Exception:  # noqa: BLE001 - the parent raises it, whatever it is
        send(("error", traceback.format_exc()))


def _collect(receivers: list[Connection], on_progress: OnProgress) -> BenchResult:
    """Read every rank until all have answered; the answer is rank 0's."""
    waiting = {receiver: rank for rank, receiver in enumerate(receivers)}
    results: dict[int, BenchResult] = {}
    while waiting:
        for receiver in wait(list(waiting)):
            assert isinstance(receiver, Connection)
            rank = waiting[receiver]
            kind, value = _receive(receiver)
            if kind == "refusal":
                raise value
            if kind == "error":
                raise WorkerDiedError(f"rank {rank} of the benchmark failed:\n{value}")
            if kind == "progress" and rank == 0:
                on_progress(*value)
            if kind == "result":
                results[rank] = value
                del waiting[receiver]
    return results[0]


def _receive(receiver: Connection) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = receiver.recv()
    except EOFError:
        message = ("error", "the process ended without a word; the kernel may have killed it for memory.")
    return message


def _stop(processes: list[SpawnProcess]) -> None:
    """End the ranks: they have answered, or one has failed and the others wait for it."""
    for process in processes:
        if process.pid is not None:
            process.kill()
            process.join()
