"""Passes of a file without annotations: whole graph launches first, then kernel sequences that repeat.

Both rules tell draft from target by layers (attention kernels of a pass): a draft model has a few, a target dozens.
With drafts between them target passes are verify passes, without any they are plain ones. Batch and rows stay unknown.
A sequence without an attention kernel keeps the kind OTHER: it repeats, but nothing says what it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fastverify.trace.events import Int64
from fastverify.trace.spans import PassKind
from fastverify.trace.work import Work

# Arbitrary: see passes.DRAFT_LAYER_SHARE.
DRAFT_LAYER_SHARE = 0.25
# Arbitrary: shorter sequences repeat by chance or are one layer.
MIN_KERNELS_PER_PASS = 16
# Arbitrary: half of the work must lie in sequences that occur again.
MIN_REPEATED_SHARE = 0.5
# Arbitrary: bounds the search; a kernel that runs once per pass is among the rarer ones.
MAX_ANCHORS = 64


@dataclass(frozen=True)
class UnmarkedPass:
    """One pass that no annotation names; `work` indexes `Work`."""

    kind: PassKind
    phase: str
    work: Int64


def find_unmarked(work: Work) -> tuple[str, list[UnmarkedPass]]:
    """The rule that was used and its passes; no passes when nothing repeats."""
    pieces = _graph_passes(work)
    if pieces:
        return "graph launches and layer counts", _named(work, pieces)
    pieces = _repeated_sequences(work)
    return "repeated kernel sequences and layer counts", _named(work, pieces)


def _graph_passes(work: Work) -> list[Int64]:
    """Kernels of each graph launch that holds whole layers; none when graphs are pieces between attention kernels."""
    in_graph = np.flatnonzero(work.is_graph)
    if not len(in_graph):
        return []
    by_launch = in_graph[np.argsort(work.correlation[in_graph], kind="stable")]
    cuts = np.flatnonzero(np.diff(work.correlation[by_launch])) + 1
    pieces = sorted(np.split(by_launch, cuts), key=lambda piece: int(work.start_ns[piece[0]]))
    with_layers = [piece for piece in pieces if _num_layers(work, piece)]
    outside = int(work.is_attention.sum()) - sum(_num_layers(work, p) for p in with_layers)
    inside = sum(_num_layers(work, piece) for piece in with_layers)
    return with_layers if inside >= outside else []


def _repeated_sequences(work: Work) -> list[Int64]:
    """Sequences that end with a kernel whose returns cut the file into equal parts: a sampling one, else a rare one."""
    kernels = np.flatnonzero(~work.is_memory)
    names = work.name[kernels]
    sampling = set(names[work.is_sampling[kernels]].tolist())
    counts = [(name, count) for name, count in Counter(names.tolist()).items() if count >= 2]
    for name, count in sorted(counts, key=lambda item: (item[0] not in sampling, item[1]))[:MAX_ANCHORS]:
        if len(kernels) < count * MIN_KERNELS_PER_PASS:
            continue
        pieces = np.split(kernels, np.flatnonzero(names == name) + 1)
        pieces = [piece for piece in pieces if len(piece) >= MIN_KERNELS_PER_PASS]
        signatures = Counter(work.name[piece].tobytes() for piece in pieces)
        repeated = sum(len(piece) for piece in pieces if signatures[work.name[piece].tobytes()] > 1)
        if repeated >= MIN_REPEATED_SHARE * len(kernels):
            return pieces
    return []


def _named(work: Work, pieces: list[Int64]) -> list[UnmarkedPass]:
    """Draft, verify, plain or other for each piece; drafts that follow each other are one round."""
    layers = [_num_layers(work, piece) for piece in pieces]
    most = max(layers, default=0)
    if most == 0:
        return [UnmarkedPass(PassKind.OTHER, "", piece) for piece in pieces]
    is_draft = [count <= most * DRAFT_LAYER_SHARE for count in layers]
    target = PassKind.VERIFY if any(is_draft) else PassKind.PLAIN
    passes: list[UnmarkedPass] = []
    for piece, drafted in zip(pieces, is_draft, strict=True):
        if drafted and passes and passes[-1].kind is PassKind.DRAFT:
            passes[-1] = UnmarkedPass(PassKind.DRAFT, "draft", np.concatenate((passes[-1].work, piece)))
        elif drafted:
            passes.append(UnmarkedPass(PassKind.DRAFT, "draft", piece))
        else:
            passes.append(UnmarkedPass(target, "", piece))
    return passes


def _num_layers(work: Work, piece: Int64) -> int:
    return int(work.is_attention[piece].sum())
