"""Reads a profiler file into `TraceData`, one per rank. First form: whole-file json; the streaming scanner replaces it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastverify.trace.events import (
    NO_ID,
    Annotations,
    CollectiveArgs,
    CpuOps,
    DeviceWork,
    Health,
    Kernels,
    Launches,
    TraceData,
    TraceInfo,
)

WORK = {"kernel": DeviceWork.KERNEL, "gpu_memcpy": DeviceWork.MEMCPY, "gpu_memset": DeviceWork.MEMSET}
LAUNCH = {"cuda_runtime", "cuda_driver"}


def read_trace(path: str | Path, on_progress: Callable[[int, int | None], None] | None = None) -> list[TraceData]:
    """All ranks in one file; several when ranks were merged."""
    blob = Path(path).read_bytes()
    if blob[:2] == b"\x1f\x8b":
        blob = gzip.decompress(blob)
    document = json.loads(blob.decode("utf-8", "replace"), strict=False)
    if isinstance(document, list):
        document = {"traceEvents": document}
    return [_to_data(document, Path(path).name)]


def _ns(value: Any) -> int:
    whole, _, fraction = str(value).partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _to_data(document: dict[str, Any], source: str) -> TraceData:
    events = document.pop("traceEvents")
    names: dict[str, int] = {}
    threads: dict[tuple[str, str], int] = {}

    def name(text: Any) -> int:
        return names.setdefault(text, len(names)) if isinstance(text, str) else NO_ID

    def thread(event: dict[str, Any]) -> int:
        return threads.setdefault((str(event.get("pid")), str(event.get("tid"))), len(threads))

    spans = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: _ns(event["ts"]))
    kernels, launches, annotations, cpu_ops, collectives = [], [], [], [], []
    has_device = any(event.get("cat") in WORK for event in spans)
    for event in spans:
        cat, args = event.get("cat"), event.get("args") or {}
        span = (_ns(event["ts"]), _ns(event.get("dur", 0)), name(event["name"]))
        ext = args.get("External id", NO_ID)
        if cat in WORK:
            device, stream = args.get("device", event["pid"]), args.get("stream", event["tid"])
            link = (args.get("correlation", NO_ID), ext, args.get("graph id", NO_ID), args.get("bytes", NO_ID))
            kernels.append((*span, device, stream, *link, int(WORK[cat])))
            owner = (0, len(kernels) - 1)
        elif cat in LAUNCH:
            launches.append((*span, thread(event), args.get("correlation", NO_ID)))
        elif cat in ("user_annotation", "gpu_user_annotation"):
            annotations.append((*span, thread(event), cat == "gpu_user_annotation"))
        elif cat == "cpu_op":
            if has_device and not re.search(r"comms|c10d|nccl|gloo|allreduce|all_reduce|gather", event["name"]):
                continue
            cpu_ops.append((*span, thread(event), ext))
            owner = (1, len(cpu_ops) - 1)
        if "Collective name" in args and cat in (*WORK, "cpu_op"):
            words = [name(args.get(k)) for k in ("Collective name", "dtype", "Process Group Name")]
            words.append(name(args.get("Process Group Description")))
            keys = ("Group size", "In msg nelems", "Out msg nelems", "Seq")
            collectives.append((*owner, *words, *(args.get(k, NO_ID) for k in keys)))

    def columns(rows: list[Any], types: str) -> list[Any]:
        cols = list(zip(*rows, strict=True)) or [()] * len(types.split())
        return [np.asarray(c, dtype=t) for c, t in zip(cols, types.split(), strict=True)]

    info = document.get("distributedInfo") or {}
    rank = re.search(r"rank[_-]?(\d+)|TP-?(\d+)", source)
    found = "distributedInfo" if "rank" in info else "file name" if rank else "default"
    number = info.get("rank", next((int(g) for g in rank.groups() if g), 0) if rank else 0)
    facts = TraceInfo(
        source=source,
        rank=number,
        rank_source=found,
        world_size=info.get("world_size", 1),
        base_time_ns=document.get("baseTimeNanoseconds", 0),
        device_names=tuple(d["name"] for d in document.get("deviceProperties", [])),
        metadata=document,
    )
    return [
        TraceData(
            facts,
            list(names),
            list(threads),
            Kernels(*columns(kernels, "i8 i8 i4 i4 i4 i8 i8 i8 i8 u1")),
            Launches(*columns(launches, "i8 i8 i4 i4 i8")),
            Annotations(*columns(annotations, "i8 i8 i4 i4 ?")),
            CpuOps(*columns(cpu_ops, "i8 i8 i4 i4 i8")),
            CollectiveArgs(*columns(collectives, "u1 i4 i4 i4 i4 i4 i4 i8 i8 i8")),
            Health(),
        )
    ][0]
