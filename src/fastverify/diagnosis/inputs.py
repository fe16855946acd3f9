"""From what a user names (files, folders, standard input) to documents, with every file accounted for.

A file that cannot be read is listed with its reason and stops nothing; a path that does not exist is an error, since it
is a typing mistake. Folders are walked without following links.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastverify.diagnosis.readers.document import MAX_BYTES, Document, document_of, read_document
from fastverify.errors import ConfigError

# Arbitrary: what a person gathers for a report is a few dozen files.
MAX_FILES = 400
STDIN = "-"
STDIN_NAME = "standard input"


@dataclass(frozen=True)
class UnknownFile:
    """A file from which nothing was read."""

    source: str
    reason: str


def read_inputs(paths: Sequence[str | Path]) -> tuple[list[Document], list[UnknownFile]]:
    """Documents of all paths; `-` is standard input. Raises ConfigError for a path that does not exist."""
    documents: list[Document] = []
    unknown: list[UnknownFile] = []
    for count, (path, source) in enumerate(_files(paths)):
        if count >= MAX_FILES:
            unknown.append(UnknownFile(source, f"only the first {MAX_FILES} files are read"))
            continue
        try:
            documents.append(_read_stdin() if source == STDIN_NAME else read_document(path, source))
        except ConfigError as error:
            unknown.append(UnknownFile(source, str(error)))
    return documents, unknown


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


def _read_stdin() -> Document:
    return document_of(sys.stdin.buffer.read(2 * MAX_BYTES), STDIN_NAME)
