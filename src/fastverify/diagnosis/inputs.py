"""From what a user names (files, folders, standard input) to documents, with every file accounted for.

A file that cannot be read is listed with its reason and stops nothing; a path that does not exist is an error, since it
is a typing mistake. Folders are walked without following links.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fastverify.diagnosis.readers.document import MAX_BYTES, Document, document_of, read_document
from fastverify.errors import ConfigError

# Arbitrary: what a person gathers for a report is a few dozen files.
MAX_FILES = 400
STDIN = "-"
# Where a file's name says which rank it is of: `rank3`, `TP-3`, and torch's nanoseconds.
_RANK = re.compile(r"rank\d+|TP-\d+|\.\d{12,}\.")
_HEAD_BYTES = 1 << 16
STDIN_NAME = "standard input"


@dataclass(frozen=True)
class UnknownFile:
    """A file from which nothing was read."""

    source: str
    reason: str


@dataclass
class Inputs:
    """`traces` are the profiler files of one run each, one file per rank."""

    documents: list[Document] = field(default_factory=list)
    traces: list[list[Path]] = field(default_factory=list)
    unknown: list[UnknownFile] = field(default_factory=list)


def read_inputs(paths: Sequence[str | Path]) -> Inputs:
    """Everything below the paths; `-` is standard input. Raises ConfigError for a path that does not exist."""
    inputs = Inputs()
    traces: dict[str, list[Path]] = {}
    for count, (path, source) in enumerate(_files(paths)):
        if count >= MAX_FILES:
            inputs.unknown.append(UnknownFile(source, f"only the first {MAX_FILES} files are read"))
            continue
        try:
            if source == STDIN_NAME:
                inputs.documents.append(document_of(sys.stdin.buffer.read(2 * MAX_BYTES), STDIN_NAME))
            elif is_trace_file(path):
                traces.setdefault(_RANK.sub("", source), []).append(path)
            else:
                inputs.documents.append(read_document(path, source))
        except ConfigError as error:
            inputs.unknown.append(UnknownFile(source, str(error)))
    inputs.traces = list(traces.values())
    return inputs


def is_trace_file(path: Path) -> bool:
    """Whether a file is of a profiler, by the first words that torch writes; the file is not read further."""
    if ".json" not in path.name or not path.is_file():
        return False
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else nullcontext(raw) as stream:
                head = stream.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return b'"traceEvents"' in head or (b'"schemaVersion"' in head and b'"deviceProperties"' in head)


def _files(paths: Sequence[str | Path]) -> Iterator[tuple[Path, str]]:
    for given in paths:
        if str(given) == STDIN:
            yield Path(STDIN), STDIN_NAME
            continue
        path = Path(given)
        if path.is_dir():
            yield from ((file, str(file)) for file in _walk(path))
        elif path.exists():
            yield path, str(path)
        else:
            raise ConfigError(f"evidence is a file, a folder or - for standard input; {given} does not exist.")


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names))
