"""One text as it was given, cut to safe limits: numbered lines, whatever its size, encoding or origin.

A file larger than MAX_BYTES keeps its first and last half, since servers print their settings first and their latest
rates last; line numbers stay those of the file. gzip and UTF-16 are read as what they hold, colours and NUL bytes are
dropped, and lines are cut. Knows no kind of text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from fastverify.errors import ConfigError

MAX_BYTES = 16 << 20
# Arbitrary: a hundred days of a busy server's log; a gzip file can promise far more than it is worth to unpack.
MAX_UNPACKED_BYTES = 2 << 30
MAX_LINE_CHARS = 1 << 16
_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")


@dataclass(frozen=True)
class Document:
    """Numbered lines of one source."""

    source: str
    lines: tuple[tuple[int, str], ...]
    skipped_bytes: int = 0

    @cached_property
    def text(self) -> str:
        """All lines that were kept."""
        return "\n".join(line for _, line in self.lines)

    def line_of(self, word: str) -> int | None:
        """Number of the first line that holds the word."""
        return next((number for number, line in self.lines if word in line), None)

    def having(self, word: str) -> Iterator[tuple[int, str]]:
        """Numbered lines that hold the word."""
        return ((number, line) for number, line in self.lines if word in line)

    @cached_property
    def json(self) -> Any:
        """The value that the text is JSON of; a list for JSON Lines; None for other text."""
        text = self.text.strip()
        if not text.startswith(("{", "[")):
            return None
        whole = _loads(text)
        if whole is not None:
            return whole
        values = []
        for _, line in self.lines:
            if line.strip():
                value = _loads(line)
                if not isinstance(value, dict):
                    return None
                values.append(value)
        return values


def read_document(path: Path, source: str | None = None) -> Document:
    """Read one regular file. Raises ConfigError for what is not one, cannot be opened, or is not text."""
    name = source or str(path)
    if not path.is_file():
        raise ConfigError(f"evidence is read from regular files, {name} is not one.")
    try:
        with path.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            return _read_stream(gzip.open(raw) if magic == _GZIP_MAGIC else raw, name)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{name} cannot be read: {error}.") from error


def document_of(data: bytes | str, source: str) -> Document:
    """The document of bytes or text in memory, such as standard input."""
    return _read_stream(io.BytesIO(data.encode(errors="replace") if isinstance(data, str) else data), source)


def _read_stream(stream: IO[bytes], source: str) -> Document:
    """Head and tail of a stream, each MAX_BYTES / 2, with line numbers of the whole."""
    head = stream.read(MAX_BYTES)
    tail = bytearray()
    skipped_newlines = skipped_bytes = total = 0
    while total < MAX_UNPACKED_BYTES and (chunk := stream.read(_CHUNK_BYTES)):
        tail += chunk
        total += len(chunk)
        excess = len(tail) - MAX_BYTES // 2
        if excess > 0:
            skipped_newlines += tail.count(b"\n", 0, excess)
            skipped_bytes += excess
            del tail[:excess]
    if b"\0" in head[:4096] and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{source} is not text: it holds NUL bytes. Give logs, commands, JSON or metrics pages.")
    if skipped_bytes:
        first = _numbered(_decode(head), 1)
        start = 1 + head.count(b"\n") + skipped_newlines
        # The first line of the tail is cut in the middle.
        return Document(source, (*first, *_numbered(_decode(bytes(tail)), start)[1:]), skipped_bytes)
    return Document(source, _numbered(_decode(head + bytes(tail)), 1))


def _decode(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def _numbered(text: str, start: int) -> tuple[tuple[int, str], ...]:
    lines = text.replace("\r\n", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return tuple((number, _clean(line)) for number, line in enumerate(lines, start=start))


def _clean(line: str) -> str:
    line = line[:MAX_LINE_CHARS].replace("\0", "")
    return _COLOUR.sub("", line) if "\x1b" in line else line


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
