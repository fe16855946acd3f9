"""Logs that a container runtime wrapped in JSON, one object a line: the text inside, on the same lines."""

from __future__ import annotations

from typing import Any

from fastverify.diagnosis.readers.document import Document

# As docker's json-file driver, journald, and common structured loggers call the text.
_KEYS = ("log", "MESSAGE", "message", "msg")


def unwrapped(document: Document) -> Document | None:
    """The log inside; None where the document is no such log."""
    value = document.json
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return None
    key = next((key for key in _KEYS if isinstance(value[0].get(key), str)), None)
    numbers = [number for number, line in document.lines if line.strip()]
    if key is None or len(numbers) != len(value):
        return None
    texts = [_text(item, key) for item in value]
    return Document(document.source, tuple(zip(numbers, texts, strict=True)), document.skipped_bytes)


def _text(item: Any, key: str) -> str:
    text = item.get(key) if isinstance(item, dict) else None
    return text.rstrip("\n").replace("\n", " ") if isinstance(text, str) else ""
