#!/usr/bin/env python3
"""Cut a window out of a profiler file, small enough for tests/data: launches, device work, annotations, collectives.

    python scripts/cut_trace.py FILE.json.gz OUT.json.gz --first 1 --last 5 --pattern '^execute_'

The window runs from the start of annotation FIRST to the start of annotation LAST, both counted among those whose name
matches the pattern. Device work stays when its launch does. Reads the whole file: for small files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

HOST = ("cuda_runtime", "cuda_driver", "user_annotation", "gpu_user_annotation")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# Operators of a CPU-only file that the reader's answers depend on: collectives, and attention, which counts layers.
KEPT_OPS = re.compile(r"shm_|attention_with_output|gloo|c10d|linear|silu|rms_norm")
KEPT_ARGS = {
    "correlation", "stream", "device", "bytes", "graph id", "Collective name", "In msg nelems", "Out msg nelems",
    "Group size", "dtype", "Process Group Name", "Process Group Description", "Seq",
}  # fmt: skip


def cut(document: dict[str, Any], pattern: str, first: int, last: int) -> dict[str, Any]:
    """The document with only the events of the window and the facts that say whose it is."""
    spans = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    marks = sorted(
        event["ts"] for event in spans if event.get("cat") == "user_annotation" and re.search(pattern, event["name"])
    )
    begin, end = marks[first], marks[last]
    device = [event for event in spans if event.get("cat") in DEVICE]
    kept = [event for event in spans if _is_host(event, bool(device)) and begin <= event["ts"] < end]
    launched = {correlation for event in kept if (correlation := _correlation(event)) is not None}
    kept += [event for event in device if _correlation(event) in launched]
    worked = {_correlation(event) for event in device}
    kept = [
        event for event in kept if event["cat"] not in ("cuda_runtime", "cuda_driver") or _correlation(event) in worked
    ]
    for event in kept:
        event["args"] = {key: value for key, value in event.get("args", {}).items() if key in KEPT_ARGS}
    info = document.get("distributedInfo", {})
    return {
        "schemaVersion": document.get("schemaVersion", 1),
        "deviceProperties": [{key: one[key] for key in ("id", "name")} for one in document["deviceProperties"][:1]],
        "distributedInfo": {key: info[key] for key in ("backend", "rank", "world_size") if key in info},
        "baseTimeNanoseconds": document.get("baseTimeNanoseconds", 0),
        "traceEvents": sorted(kept, key=lambda event: event["ts"]),
        "traceName": "cut.json",
    }


def _is_host(event: dict[str, Any], has_device: bool) -> bool:
    if event.get("cat") == "cpu_op":
        return not has_device and KEPT_OPS.search(event["name"]) is not None
    return event.get("cat") in HOST


def _correlation(event: dict[str, Any]) -> int | None:
    return event.get("args", {}).get("correlation")


def main() -> int:
    """Parse, cut, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=-1)
    parser.add_argument("--pattern", default="^execute_")
    options = parser.parse_args()
    with gzip.open(options.source, "rt") as file:
        document = json.load(file)
    text = json.dumps(cut(document, options.pattern, options.first, options.last), separators=(",", ":"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(options.out, "wb", 9, mtime=0) as file:
        file.write(text.encode())
    print(f"{options.out}: {options.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
