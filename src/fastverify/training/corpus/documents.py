"""Documents of a source: one per file, some Python files cut into their top-level definitions, WordNet into chats.

Definitions as documents of their own teach the model what follows a prompt such as `def fibonacci(n):`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fastverify.training.corpus.fetch import read_files
from fastverify.training.corpus.readers import MIN_TEXT_BYTES, read_text
from fastverify.training.corpus.sources import Domain, Source
from fastverify.training.corpus.wordnet import conversations, is_held_out, parse_entries

# Arbitrary: enough files in pieces to learn short prompts, few enough to keep long files whole.
SPLIT_ONE_FILE_IN = 6
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")


@dataclass(frozen=True)
class Document:
    """One piece of text that ends with an end-of-text token in the token stream."""

    source: str
    domain: Domain
    path: str
    text: str
    held_out: bool

    @property
    def key(self) -> bytes:
        """sha256 of the text without regard to white space; equal keys are duplicates."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).digest()


def read_documents(source: Source, archive: Path) -> Iterator[Document]:
    """Documents of `source` up to its cap, files in the order of a hash so that a cap takes a fair sample."""
    if source.reader == "wordnet":
        yield from _wordnet_documents(source, archive)
        return
    files = sorted(read_files(source, archive), key=lambda file: hashlib.sha256(file[0].encode()).digest())
    remaining = source.max_bytes
    for path, content in files:
        text = read_text(source, path, content)
        if not text or any(token in text for token in SPECIAL_TOKENS):
            continue
        remaining -= len(text.encode())
        if remaining < 0:
            return
        for piece in _pieces(source, path, text):
            yield Document(source.name, source.domain, path, piece, source.held_out)


def _pieces(source: Source, path: str, text: str) -> list[str]:
    is_split = source.reader == "python" and not source.held_out and _hash(path) % SPLIT_ONE_FILE_IN == 0
    return definitions(text) if is_split else [text]


def definitions(text: str) -> list[str]:
    """Top-level functions and classes of a Python module with their decorators, each long enough to be a document."""
    starts = [match.start() for match in re.finditer(r"(?m)^(?=(?:@|def |class |async def ))", text)]
    # A decorator and the definition below it are one piece.
    starts = [start for start in starts if not _follows_decorator(text, start)]
    pieces = [text[a:b].rstrip() + "\n" for a, b in pairwise([*starts, len(text)])]
    return [piece for piece in pieces if len(piece) >= MIN_TEXT_BYTES]


def _follows_decorator(text: str, start: int) -> bool:
    previous = text[:start].rstrip("\n").rpartition("\n")[2]
    return previous.startswith("@")


def _wordnet_documents(source: Source, archive: Path) -> Iterator[Document]:
    for path, content in read_files(source, archive):
        if not Path(path).name.startswith("data."):
            continue
        entries = parse_entries(content.decode("utf-8"))
        for held_out in (False, True):
            chosen = [entry for entry in entries if is_held_out(entry) == held_out]
            for text in conversations(chosen):
                yield Document(source.name, source.domain, path, text, held_out)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
