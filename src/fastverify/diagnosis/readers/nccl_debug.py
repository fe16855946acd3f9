"""NCCL's own lines, printed with NCCL_DEBUG=INFO: which transport joins GPUs, its version, what the environment set.

The transport is the answer to "is peer-to-peer in use": `via P2P` is, `via SHM` goes through host memory whatever the
topology promises. NCCL writes the algorithm of a call only with NCCL_DEBUG_SUBSYS=TUNING, which is not read here.
"""

from __future__ import annotations

import re

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder, whole

KIND = "NCCL log"
MARKER = "NCCL INFO"
_CHANNEL = re.compile(r"Channel \d{1,4}(?:/\d{1,4})? ?: .{1,60} via (P2P|SHM|NET|NVLS|C2C|DIRECT)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_SET = re.compile(r"(NCCL_\w{1,60}) set by environment to (.{1,200}?)\.?$")
_RANKS = re.compile(r"\bnranks (\d{1,4}) ")


def read_nccl_debug(document: Document) -> Reading | None:
    """Transport of the channels, and settings."""
    if MARKER not in document.text:
        return None
    builder = ReadingBuilder(KIND, document.source)
    transports: dict[str, int] = {}
    for line, text in document.lines:
        if "NCCL" not in text:
            continue
        if found := _CHANNEL.search(text):
            transports.setdefault(found[1], line)
        if found := _VERSION.search(text):
            builder.add("hardware.packages.nccl", found[1], line, once=True)
        if found := _SET.search(text.rstrip()):
            builder.add(f"launch.env.{found[1]}", found[2].strip(), line, once=True)
        if found := _RANKS.search(text):
            builder.add("tp", whole(found[1]), line, once=True)
    if "SHM" in transports and not transports.keys() & {"P2P", "NET"}:
        builder.add("fabric", "host-memory", transports["SHM"])
    for name, line in transports.items():
        builder.add("nccl_transport", name, line)
    return builder.build() if builder.evidence else None
