"""Bytes of a profiler file from wherever they are: plain, gzip of any number of members, a pipe.

What the file is, is read from its first bytes, never from its name. Files of other profilers are refused with what to
do instead. A gzip stream that ends early or turns bad gives what came before, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from fastverify.errors import TraceFormatError

Progress = Callable[[int, int | None], None]

PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"SQLite format 3": (
        "an Nsight Systems export (SQLite)",
        "record with torch.profiler, or with --profiler of the server",
    ),
    b"NVTX": ("an Nsight Systems report", "record with torch.profiler"),
    b"PK\x03\x04": ("a zip archive", "unpack it and pass the .json or .json.gz file inside"),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "unpack it with `zstd -d` and pass the result"),
    b"\xfd7zXZ": ("an xz file", "unpack it with `xz -d` and pass the result"),
    b"BZh": ("a bzip2 file", "unpack it with `bunzip2` and pass the result"),
}


@dataclass
class Source:
    """One file being read; `faults` holds what was wrong with its packing, filled while it is read."""

    name: str
    path: Path | None
    on_progress: Progress | None = None
    faults: list[tuple[str, str]] = field(default_factory=list)

    def pieces(self) -> Iterator[bytes]:
        """The text in pieces of about PIECE_BYTES. Raises TraceFormatError for a file of another profiler."""
        with self._open() as file:
            packed = self._read(file)
            first = next(packed, b"")
            if not first:
                raise TraceFormatError(f"a trace holds events, but {self.name} is empty; record it again.")
            if first.startswith(_GZIP):
                yield from self._refuse_foreign(self._unpack(first, packed))
            else:
                yield from self._refuse_foreign(_chain(first, packed))

    def _open(self) -> AbstractContextManager[BinaryIO]:
        if self.path is None:
            return nullcontext(sys.stdin.buffer)
        try:
            return self.path.open("rb")
        except OSError as error:
            raise TraceFormatError(f"cannot open {self.path}: {error.strerror}; check the path.") from error

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        total = self.path.stat().st_size if self.path else None
        done = 0
        while piece := file.read(PIECE_BYTES):
            done += len(piece)
            yield piece
            if self.on_progress:
                self.on_progress(done, total)

    def _unpack(self, first: bytes, packed: Iterator[bytes]) -> Iterator[bytes]:
        """Members one after the other; bytes behind the last member that are no member are a fault."""
        decoder = isal_zlib.decompressobj(wbits=31)
        for piece in _chain(first, packed):
            data = piece
            while data:
                if decoder.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    if not _GZIP.startswith(data[:2]):
                        self.faults.append(("text behind the end of the gzip stream", repr(data[:20])))
                        return
                    decoder = isal_zlib.decompressobj(wbits=31)
                try:
                    text = decoder.decompress(data, PIECE_BYTES)
                except isal_zlib.IsalError as error:  # type: ignore[misc]  # its stub has no class here
                    self.faults.append(("damaged gzip stream", str(error)))
                    return
                if text:
                    yield text
                data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        if not decoder.eof:
            self.faults.append(("truncated gzip stream", "the file ends inside it"))

    def _refuse_foreign(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        first = next(pieces, b"")
        for magic, (what, instead) in _FOREIGN.items():
            if first.startswith(magic):
                raise TraceFormatError(
                    f"a trace is a JSON file of torch.profiler, but {self.name} is {what}; {instead}."
                )
        if _looks_like_perfetto(first):
            raise TraceFormatError(
                f"a trace is a JSON file of torch.profiler, but {self.name} is a Perfetto protobuf; record it with "
                "export_chrome_trace to a name that ends in .json or .json.gz."
            )
        yield first
        yield from pieces


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _looks_like_perfetto(first: bytes) -> bool:
    """A protobuf of packets: field 1, length-delimited, and bytes that no text file has."""
    return first[:1] == b"\n" and b"\0" in first[:256] and b"{" not in first[1:8].lstrip()[:1]
