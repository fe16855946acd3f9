"""Reads a profiler file into `TraceData`, one per rank, in one pass and in memory that its answers need, not its size.

The text is cut up by the native scanner (csrc/trace); this file brings it the bytes and turns its columns into sorted
numpy tables. Faults of the text come from the scanner, faults of the events from health.py.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastverify.errors import TraceFormatError
from fastverify.trace import facts, health, links
from fastverify.trace._scan import Scanner
from fastverify.trace.dialects import CATEGORIES, COLLECTIVE_WORDS
from fastverify.trace.events import (
    Annotations,
    CollectiveArgs,
    CollectiveOwner,
    CpuOps,
    Health,
    Kernels,
    Launches,
    TraceData,
    TraceInfo,
)
from fastverify.trace.sources import Progress, Source

STDIN = "-"
_DTYPES = {"Int64": "<i8", "Int32": "<i4", "Uint8": "|u1", "Bool": "|b1"}


def read_trace(path: str | Path, on_progress: Progress | None = None) -> list[TraceData]:
    """All ranks in one file ("-" is standard input); several when ranks were merged into it.

    `on_progress` gets the bytes read so far and the size of the file, None for a pipe.
    Raises TraceFormatError for a file without a single event or fact, or of another profiler.
    """
    is_pipe = str(path) == STDIN
    source = Source("standard input" if is_pipe else Path(path).name, None if is_pipe else Path(path), on_progress)
    scanner = Scanner(CATEGORIES, COLLECTIVE_WORDS)
    for piece in source.pieces():
        scanner.feed(piece)
    scanner.finish()
    if not scanner.num_events and not scanner.facts():
        raise TraceFormatError(
            f"a trace is a JSON file of torch.profiler, but {source.name} holds no event; record it again, or check "
            "that it was not cut before the first event."
        )
    return _to_traces(scanner, source)


def _to_traces(scanner: Scanner, source: Source) -> list[TraceData]:
    names = [facts.decode_text(name) for name in scanner.names()]
    threads = [_to_thread(thread) for thread in scanner.threads()]
    found = scanner.facts()
    parts = [part for part in map(scanner.take_rank, range(scanner.num_ranks)) if _holds_rows(part)]
    of_file = _text_health(scanner, source)
    if not parts:
        return [_without_events(facts.read_info(source.name, 0, "", found), of_file)]
    traces = []
    for part in parts:
        label = part["label"].decode("utf-8", "replace")
        info = facts.read_info(source.name, part["document"], label, found)
        trace = _to_trace(part, info, names, threads, of_file)
        traces.append(health.examine(trace, num_cpu_ops=part["num_cpu_ops"]))
        of_file = Health()  # what is wrong with the text is said once, with the first rank
    return traces


def _to_trace(
    part: dict[str, Any], info: TraceInfo, names: list[str], threads: list[tuple[str, str]], of_file: Health
) -> TraceData:
    kernels, kernel_rows = _sorted(Kernels, part["kernels"])
    launches = _linked_launches(part["launches"], kernels, names)
    annotations, _ = _sorted(Annotations, part["annotations"])
    cpu_ops, cpu_rows = _sorted(CpuOps, part["cpu_ops"])
    args = CollectiveArgs(*(column.copy() for column in _columns(CollectiveArgs, part["collective_args"])))
    for owner, rows in ((CollectiveOwner.KERNEL, kernel_rows), (CollectiveOwner.CPU_OP, cpu_rows)):
        mine = args.owner == owner
        args.row[mine] = rows[args.row[mine]]
    return TraceData(info, names, threads, kernels, launches, annotations, cpu_ops, args, of_file)


def _columns(table: type[Any], columns: list[bytes]) -> list[NDArray[Any]]:
    """The columns of a dataclass over the scanner's bytes, not copied."""
    types = [_DTYPES[str(field.type)] for field in fields(table)]
    arrays = [np.frombuffer(column, dtype=dtype) for column, dtype in zip(columns, types, strict=True)]
    columns.clear()
    return arrays


def _linked_launches(columns: list[bytes], kernels: Kernels, names: list[str]) -> Launches:
    """Without the queries and settings, half of all calls in a long file: what has work, or by its name should have."""
    arrays = _columns(Launches, columns)
    _, _, name, _, correlation = arrays
    kept = links.is_in(correlation, np.unique(kernels.correlation)) | links.where_name(names, name, links.LAUNCH.search)
    return _sort(Launches, [array[kept] for array in arrays])[0]  # type: ignore[no-any-return]


def _sorted(table: type[Any], columns: list[bytes]) -> tuple[Any, NDArray[np.int64]]:
    """The table sorted by start, and where each row of the file went. One column at a time is held twice."""
    return _sort(table, _columns(table, columns))


def _sort(table: type[Any], arrays: list[NDArray[Any]]) -> tuple[Any, NDArray[np.int64]]:
    order = np.argsort(arrays[0], kind="stable")
    for index, array in enumerate(arrays):
        arrays[index] = array[order]
        del array
    moved = np.empty(len(order), dtype=np.int64)
    moved[order] = np.arange(len(order))
    return table(*arrays), moved


def _holds_rows(part: dict[str, Any]) -> bool:
    return any(part[table][0] for table in ("kernels", "launches", "annotations", "cpu_ops"))


def _without_events(info: TraceInfo, of_file: Health) -> TraceData:
    tables = ("kernels", Kernels), ("launches", Launches), ("annotations", Annotations), ("cpu_ops", CpuOps)
    part = {name: [b""] * len(fields(table)) for name, table in (*tables, ("collective_args", CollectiveArgs))}
    return health.examine(_to_trace(part, info, [], [], of_file), num_cpu_ops=0)


def _text_health(scanner: Scanner, source: Source) -> Health:
    found = Health()
    for fault, example in source.faults:
        found.add(fault, 1, example)
    for fault, count, text in scanner.faults():
        found.add(fault, count, _one_line(text))
    unread = [(facts.decode_text(name) or "no category", count) for name, count in scanner.unread_categories()]
    for name, count in unread:
        found.add("events of a category that is not read", count, name)
    return found


def _one_line(text: bytes) -> str:
    return re.sub(r"\s+", " ", text.decode("utf-8", "replace")).strip()


def _to_thread(text: bytes) -> tuple[str, str]:
    pid, _, tid = text.partition(b"\x1f")
    return facts.decode_text(pid), facts.decode_text(tid)
