"""Lines that SGLang and vLLM both print about collectives and CUDA graphs, as a table: text in the line -> fact.

The texts stand in SGLang 0.5.5 and 0.5.23 and vLLM 0.11.0 and 0.33.0. A message says what a server decided at its
start, not what every call did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastverify.diagnosis.readers.reading import ReadingBuilder

# Arbitrary: warnings repeat once per rank and request; a report needs to see each kind, not each.
MAX_ERRORS = 40
MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class Message:
    """`value` None takes the first group of `pattern`, or the line itself."""

    text: str
    name: str
    value: str | None = None
    pattern: re.Pattern[str] | None = None


_PREFIX = re.compile(
    r"^(?:\([^)]{0,80}\) ?)?(?:\[\d[^\]]{0,80}\] ?)?(?:(?:INFO|WARNING|ERROR|DEBUG):? )?[\d:. -]{0,30}"
    r"(?:\[[\w.]{1,60}:\d{1,6}\] ?|[\w.]{1,60}\.py:\d{1,6}\] ?)?"
)
_MODE = r"([A-Z_]{4,30})"
MESSAGES = (
    Message("is disabled because it's not supported on more than two PCIe-only GPUs", "log.custom_all_reduce_disabled"),
    Message("is disabled because your platform lacks GPU P2P", "log.custom_all_reduce_disabled"),
    Message("is disabled due to an unsupported world", "log.custom_all_reduce_disabled"),
    Message("is disabled because this process group spans", "log.custom_all_reduce_disabled"),
    Message("Initialized FlashInfer PCIe IPC all-reduce", "log.engaged"),
    Message("FlashInfer PCIe-IPC workspace built", "log.engaged"),
    Message("FlashInfer PCIe-IPC all-reduce enabled", "log.engaged"),
    Message("Created MSCCL++ communicator", "log.engaged"),
    Message("is using nccl==", "hardware.packages.nccl", pattern=re.compile(r"is using nccl==([0-9.]{1,20})")),
    Message(
        "setting cudagraph_mode=", "log.cuda_graph_mode", pattern=re.compile(rf"setting cudagraph_mode=\W?{_MODE}")
    ),
    Message(
        "is not supported with",
        "log.cuda_graph_mode_requested",
        pattern=re.compile(rf"CUDAGraphMode\.{_MODE} is not supported"),
    ),
    Message(
        "Overriding cudagraph_mode",
        "log.cuda_graph_mode",
        pattern=re.compile(rf"Overriding cudagraph_mode (?:from )?(?:[A-Z_]{{4,30}} )?to {_MODE}"),
    ),
    Message(
        "Overriding cudagraph_mode from",
        "log.cuda_graph_mode_requested",
        pattern=re.compile(rf"Overriding cudagraph_mode from {_MODE}"),
    ),
)
# What a known bug or a rule may match; anything else that calls itself an error is kept as well.
ERROR_WORDS = (
    "algorithm/protocol",
    "Capture cuda graph failed",
    "PCIe-IPC",
    "Device capability",
    "multicast",
    "requires SM90",
    "is reset to",
    "falling back",
    "Falling back",
    "NCCL WARN",
    "NCCL error",
    "illegal memory access",
    "out of memory",
    "Watchdog caught",
    "ERROR",
    "WARNING",
    "Error:",
    "warning",
    "not supported",
    "deprecated",
)


def read_message(builder: ReadingBuilder, line: int, text: str) -> None:
    """Add what a line of the table says."""
    for message in MESSAGES:
        if message.text in text:
            value = _value(message, text)
            if value is not None:
                builder.add(message.name, value, line, once=message.name != "log.engaged")


def read_error(builder: ReadingBuilder, line: int, text: str, seen: set[str]) -> None:
    """Add a warning or error, each wording once."""
    if len(seen) < MAX_ERRORS and any(word in text for word in ERROR_WORDS):
        body = without_prefix(text)[:MAX_ERROR_CHARS]
        kind = re.sub(r"\d+", "0", body)
        if kind not in seen:
            seen.add(kind)
            builder.add("log.errors", body, line)


def without_prefix(text: str) -> str:
    """A log line without process, time and level."""
    return _PREFIX.sub("", text, count=1).strip()


def _value(message: Message, text: str) -> str | None:
    if message.value is not None:
        return message.value
    if message.pattern is None:
        return without_prefix(text)
    found = message.pattern.search(text)
    return found[1] if found else None
