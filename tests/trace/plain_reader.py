"""The plainest reader of a valid file, by the json module: what the scanner must agree with, row by row."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

WORK = {"kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
RUNTIME = ("cuda_runtime", "cuda_driver")
NOTES = ("user_annotation", "gpu_user_annotation")


def load_events(path: Path) -> list[dict[str, Any]]:
    """All events with a span, sorted by start."""
    document = json.loads(gzip.decompress(path.read_bytes()), strict=False, parse_float=Decimal, parse_int=Decimal)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    return sorted(spans, key=lambda event: event["ts"])


def to_ns(us: Decimal) -> int:
    return round(us * 1000)


def whole(value: Any) -> int:
    return int(value) if isinstance(value, Decimal) and value == int(value) else -1


def kernel_rows(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            to_ns(event["ts"]), to_ns(event["dur"]), event["name"], whole(event["args"]["device"]),
            whole(event["args"]["stream"]), whole(event["args"]["correlation"]),
            whole(event["args"].get("External id")), whole(event["args"].get("graph id")),
            whole(event["args"].get("bytes")), WORK[event["cat"]],
        )
        for event in events
        if event["cat"] in WORK
    ]  # fmt: skip


def launch_rows(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    launched = {whole(event["args"]["correlation"]) for event in events if event["cat"] in WORK}
    return [
        (to_ns(event["ts"]), to_ns(event["dur"]), event["name"], (str(event["pid"]), str(event["tid"])),
         whole(event["args"].get("correlation")))
        for event in events
        if event["cat"] in RUNTIME
        and ("Launch" in event["name"] or whole(event["args"].get("correlation")) in launched)
    ]  # fmt: skip


def annotation_rows(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (to_ns(event["ts"]), to_ns(event["dur"]), event["name"], (str(event["pid"]), str(event["tid"])),
         event["cat"] == NOTES[1])
        for event in events
        if event["cat"] in NOTES
    ]  # fmt: skip


def collective_rows(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """For kernels and operators alike: start of the event, then what was recorded."""
    keys = ("Group size", "In msg nelems", "Out msg nelems", "Seq")
    return sorted(
        (to_ns(event["ts"]), event["args"]["Collective name"], *(whole(event["args"].get(key)) for key in keys))
        for event in events
        if event["cat"] in (*WORK, "cpu_op") and "Collective name" in event.get("args", {})
    )
