"""Damage as it happens to files: flipped bytes, cuts, repeated and moved pieces, two files spliced. Seeded."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

Mutation = Callable[[bytearray, random.Random], bytearray]

MARKS = b'{}[]",:\\ \n\x00\x01\xff\xfe0-e.'


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(len(data)) if data else 0


def flip_bytes(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 3, 30))):
        if data:
            data[_place(data, rng)] = rng.randrange(256)
    return data


def put_marks(data: bytearray, rng: random.Random) -> bytearray:
    """Bytes that mean something to a reader of JSON, in places where they should not be."""
    for _ in range(rng.choice((1, 3, 30))):
        if data:
            data[_place(data, rng)] = rng.choice(MARKS)
    return data


def cut_tail(data: bytearray, rng: random.Random) -> bytearray:
    return data[: _place(data, rng)]


def cut_head(data: bytearray, rng: random.Random) -> bytearray:
    return data[_place(data, rng) :]


def cut_middle(data: bytearray, rng: random.Random) -> bytearray:
    begin = _place(data, rng)
    del data[begin : begin + rng.choice((1, 20, 500, 5000))]
    return data


def repeat_piece(data: bytearray, rng: random.Random) -> bytearray:
    begin = _place(data, rng)
    piece = data[begin : begin + rng.choice((1, 50, 1000, 20000))]
    where = _place(data, rng)
    return data[:where] + piece * rng.choice((1, 2, 20)) + data[where:]


def splice_itself(data: bytearray, rng: random.Random) -> bytearray:
    """Two ranks that wrote into one file."""
    where = _place(data, rng)
    return data[:where] + data + data[where:]


def drop_mark(data: bytearray, rng: random.Random) -> bytearray:
    mark = rng.choice((b'"', b",", b"}", b"]", b":", b"{"))
    where = data.find(mark, _place(data, rng))
    if where >= 0:
        del data[where]
    return data


def nest_deeply(data: bytearray, rng: random.Random) -> bytearray:
    where = _place(data, rng)
    return data[:where] + rng.choice((b"[", b"{", b'{"a":')) * rng.choice((10, 1000, 100_000)) + data[where:]


MUTATIONS: list[Mutation] = [
    flip_bytes, put_marks, cut_tail, cut_head, cut_middle, repeat_piece, splice_itself, drop_mark, nest_deeply,
]  # fmt: skip


def mutate(seed_file: bytes, seed: int) -> bytes:
    """One damaged file; one in four is packed, and half of those are damaged in the packing."""
    rng = random.Random(seed)
    data = bytearray(seed_file)
    for mutation in rng.choices(MUTATIONS, k=rng.choice((1, 1, 2, 4))):
        data = mutation(data, rng)
    if rng.random() < 0.25:
        packed = bytearray(gzip.compress(bytes(data), compresslevel=1))
        return bytes(rng.choice((flip_bytes, cut_tail))(packed, rng) if rng.random() < 0.5 else packed)
    return bytes(data)
