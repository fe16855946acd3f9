"""Run a function on several rank processes, with a deadline, and hand back what each returned.

Ranks are forked from one server process that has imported torch once, so a set of ranks starts in a fraction of a
second. The function must be importable (top level of a test module); it is called as
`fn(rank, world_size, rendezvous, *args)`, where `create_group(rank, world_size, rendezvous)` connects the ranks.
"""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "fastverify.comm.communicator", "pytest"])


class RankFailedError(AssertionError):
    """The first rank that failed, with its traceback."""


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60.0, killed: Collection[int] = ()
) -> list[Any]:
    """What `fn` returned on each rank; None for the ranks in `killed`, which are expected to die without an answer.

    Raises: RankFailedError with the first failing rank's traceback, or naming the ranks still running at the deadline.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            CONTEXT.Process(target=_run_rank, args=(folder, fn, rank, world_size, args), name=f"rank {rank}")
            for rank in range(world_size)
        ]
        try:
            for process in processes:
                process.start()
            _join(processes, folder, time.monotonic() + timeout_s, killed)
            return [_read(folder, rank) for rank in range(world_size)]
        finally:
            _stop(processes)


def _run_rank(folder: Path, fn: Callable[..., Any], rank: int, world_size: int, args: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        result = fn(rank, world_size, f"file://{folder}/meet", *args)
        _write(folder / f"{rank}.result", result)
    except BaseException:  # noqa: BLE001 - the parent raises it, whatever it is
        _write(folder / f"{rank}.error", traceback.format_exc())
        raise SystemExit(1) from None


def _write(path: Path, value: Any) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(value))
    unfinished.rename(path)


def _read(folder: Path, rank: int) -> Any:
    path = folder / f"{rank}.result"
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _join(processes: list[ForkServerProcess], folder: Path, deadline: float, killed: Collection[int]) -> None:
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    while running:
        ended = wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
        if not ended:
            raise RankFailedError(f"ranks {sorted(running.values())} still ran at the deadline")
        for rank in sorted(running.pop(sentinel) for sentinel in ended):
            processes[rank].join()
            error = folder / f"{rank}.error"
            if error.exists():
                raise RankFailedError(f"rank {rank} failed:\n{pickle.loads(error.read_bytes())}")
            if processes[rank].exitcode != 0 and rank not in killed:
                raise RankFailedError(f"rank {rank} ended with exit code {processes[rank].exitcode}")


def _stop(processes: list[ForkServerProcess]) -> None:
    for process in processes:
        if process.pid is not None and process.is_alive():
            process.kill()
    for process in processes:
        if process.pid is not None:
            process.join()
        process.close()
