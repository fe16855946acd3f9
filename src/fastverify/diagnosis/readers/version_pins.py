"""The server's release where a command or manifest pins it: container images and `pip install` lines.

SGLang's log does not print its release, so the image it ran in is often the only place that tells.
"""

from __future__ import annotations

import re

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder

KIND = "pinned release"
_PINS = (
    re.compile(r"\b(?:lmsysorg/)?(sglang):v(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.?(?:post|rc)\d{1,3})?)"),
    re.compile(r"\bvllm/(vllm)-openai:v(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.?(?:post|rc)\d{1,3})?)"),
    re.compile(r"\b(sglang|vllm)(?:\[[\w,]{1,60}\])?==(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.?(?:post|rc)\d{1,3})?)"),
)
_WORDS = ("sglang", "vllm")


def read_version_pins(document: Document) -> Reading | None:
    """The first pin of each server."""
    builder = ReadingBuilder(KIND, document.source)
    seen: set[str] = set()
    for line, text in document.lines:
        if not any(word in text for word in _WORDS):
            continue
        for pattern in _PINS:
            found = pattern.search(text)
            if found and found[1] not in seen:
                seen.add(found[1])
                builder.add("server_version", found[2], line)
                builder.add(f"hardware.packages.{found[1]}", found[2], line)
    return builder.build() if builder.evidence else None
