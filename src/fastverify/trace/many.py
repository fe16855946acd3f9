"""Reads several profiler files: one after the other while they are small, else in parallel processes.

A process costs about as long to start as a small file to read. Progress is bytes of all files together.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from fastverify.errors import TraceFormatError
from fastverify.hardware import num_usable_cores
from fastverify.trace.events import TraceData
from fastverify.trace.reader import STDIN, read_trace
from fastverify.units import BYTES_PER_MB

# Arbitrary: starting a process and sending the columns back takes about as long as reading some MB of gzip.
PARALLEL_BYTES = 16 * BYTES_PER_MB
FILE_ENDINGS = (".json", ".json.gz")

TotalProgress = Callable[[int, int | None], None]
_Report = tuple[int, int]


def read_traces(paths: Sequence[str | Path], on_progress: TotalProgress | None = None) -> list[TraceData]:
    """All ranks of all files, in the order of the files. A folder stands for the profiler files in it."""
    files = [file for path in paths for file in files_of(path)]
    sizes = [0 if str(file) == STDIN else Path(file).stat().st_size for file in files]
    total = None if STDIN in map(str, files) else sum(sizes)
    progress = _Total(len(files), total, on_progress)
    if len(files) > 1 and sum(sizes) > PARALLEL_BYTES and STDIN not in map(str, files):
        return _read_in_processes(files, progress)
    traces = []
    for index, file in enumerate(files):
        traces += read_trace(file, lambda done, _size, index=index: progress.report(index, done))  # type: ignore[misc]
    return traces


def files_of(path: str | Path) -> list[str | Path]:
    """The path itself, or the profiler files in it when it is a folder."""
    if str(path) == STDIN or not Path(path).is_dir():
        if str(path) != STDIN and not Path(path).exists():
            raise TraceFormatError(f"a profiler file must exist, but {path} does not. Check the path.")
        return [path]
    found: list[str | Path] = [file for file in sorted(Path(path).iterdir()) if file.name.endswith(FILE_ENDINGS)]
    if not found:
        endings = " or ".join(FILE_ENDINGS)
        raise TraceFormatError(f"a folder of profiler files must hold {endings}, but {path} has none.")
    return found


class _Total:
    """Adds up the bytes of all files."""

    def __init__(self, num_files: int, total: int | None, on_progress: TotalProgress | None) -> None:
        self._done = [0] * num_files
        self._total = total
        self._on_progress = on_progress

    def report(self, index: int, done: int) -> None:
        self._done[index] = done
        if self._on_progress:
            self._on_progress(sum(self._done), self._total)


_queue: SimpleQueue[_Report | None] | None = None


def _read_in_processes(files: Sequence[str | Path], progress: _Total) -> list[TraceData]:
    context = multiprocessing.get_context("spawn")
    queue: SimpleQueue[_Report | None] = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(queue, progress), daemon=True)
    listener.start()
    workers = min(len(files), num_usable_cores())
    try:
        with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(queue,)) as pool:
            return [trace for traces in pool.map(_read_one, range(len(files)), files) for trace in traces]
    finally:
        queue.put(None)
        listener.join()


def _listen(queue: SimpleQueue[_Report | None], progress: _Total) -> None:
    while (report := queue.get()) is not None:
        progress.report(*report)


def _start_worker(queue: SimpleQueue[_Report | None]) -> None:
    global _queue
    _queue = queue


def _read_one(index: int, file: str | Path) -> list[TraceData]:
    def report(done: int, _size: int | None) -> None:
        if _queue is not None:
            _queue.put((index, done))

    return read_trace(file, report)
