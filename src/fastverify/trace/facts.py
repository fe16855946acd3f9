"""Who recorded a file: rank, world size, devices, clock base, from its top level, process labels or name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from fastverify.trace.events import TraceInfo

Fact = tuple[int, bytes, bytes, bytes]

# Source: file names of SGLang, vLLM, TensorRT-LLM and torch's tensorboard_trace_handler.
_RANK_IN_NAME = re.compile(r"(?:^|[^a-zA-Z])(?:rank[_-]?|TP-?|tp|worker)(\d+)")
_RANK_IN_LABEL = re.compile(r"TP-?(\d+)|rank[ _]?(\d+)", re.IGNORECASE)


def parse_json(text: bytes) -> Any:
    """A JSON value, forgiving about control characters, encoding and wrong escapes; the text itself when it is none."""
    decoded = text.decode("utf-8", "replace")
    for candidate in (decoded, re.sub(r'\\(?!["\\/bfnrtu])', r"\\\\", decoded)):
        try:
            return json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
    return decoded


def decode_text(text: bytes) -> str:
    """The content of a JSON string, given without its quotes."""
    if b"\\" not in text:
        return text.decode("utf-8", "replace")
    value = parse_json(b'"' + text + b'"')
    return value if isinstance(value, str) else str(value)


def read_info(source: str, document: int, label: str, facts: Iterable[Fact]) -> TraceInfo:
    """The facts of one document, for one rank of it: `label` is set in files that a server merged from many."""
    metadata: dict[str, Any] = {}
    processes: list[str] = []
    for number, of_label, key, text in facts:
        if number != document:
            continue
        if key in (b"process_name", b"process_labels"):
            if of_label.decode("utf-8", "replace") == label:
                processes += _names_in(parse_json(text))
        else:
            metadata[decode_text(key)] = parse_json(text)
    distributed = metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank, rank_source = _find_rank(source, label, distributed)
    return TraceInfo(
        source=source,
        rank=rank,
        rank_source=rank_source,
        world_size=_whole(distributed.get("world_size"), 1),
        base_time_ns=_whole(metadata.get("baseTimeNanoseconds"), 0),
        process_label=label or next(iter(processes), ""),
        device_names=_device_names(metadata.get("deviceProperties")),
        metadata=metadata,
    )


def _find_rank(source: str, label: str, distributed: dict[str, Any]) -> tuple[int, str]:
    in_label = _RANK_IN_LABEL.search(label)
    if in_label:
        return int(in_label[1] or in_label[2]), "process label"
    rank = _whole(distributed.get("rank"), -1)
    if rank >= 0:
        return rank, "distributedInfo"
    in_name = _RANK_IN_NAME.search(source)
    return (int(in_name[1]), "file name") if in_name else (0, "default")


def _whole(value: Any, missing: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return missing


def _names_in(args: Any) -> list[str]:
    values = args.values() if isinstance(args, dict) else ()
    return [value for value in values if isinstance(value, str) and value not in ("CPU", "")]


def _device_names(devices: Any) -> tuple[str, ...]:
    if not isinstance(devices, list):
        return ()
    return tuple(str(device.get("name", "")) for device in devices if isinstance(device, dict))
