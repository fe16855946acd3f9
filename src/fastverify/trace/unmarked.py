"""Passes of a file without annotations: whole graph launches first, then kernel sequences that repeat.

Both rules tell draft from target by layers (attention kernels of a pass): a draft model has a few, a target dozens.
With drafts between them target passes are verify passes, without any they are plain ones. Batch and rows stay unknown,
and what a sequence has behind its last gather or sampling kernel is counted to the next one.
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
# Arbitrary: half of the kernels must lie in parts of a depth that occurs again.
MIN_REPEATED_SHARE = 0.5


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
    """Parts that end with the gather of the logits, else with a sampling kernel, where parts of equal depth repeat.

    Nothing rarer is tried: a kernel that runs once per layer cuts a file into parts that repeat just as well.
    """
    kernels = np.flatnonzero(~work.is_memory)
    is_gather = work.is_collective & ~work.is_all_reduce
    for is_end in (is_gather[kernels], work.is_sampling[kernels]):
        counts = Counter(work.name[kernels][is_end].tolist())
        for name, _count in sorted(counts.items(), key=lambda item: item[1]):
            pieces = np.split(kernels, np.flatnonzero(work.name[kernels] == name) + 1)
            depths = [_num_layers(work, piece) for piece in pieces]
            repeats = Counter(depths)
            kept = [piece for i, piece in enumerate(pieces) if depths[i]]
            repeated = sum(len(piece) for i, piece in enumerate(pieces) if depths[i] and repeats[depths[i]] > 1)
            if len(kept) > 1 and repeated >= MIN_REPEATED_SHARE * len(kernels):
                return kept
    return []


def _named(work: Work, pieces: list[Int64]) -> list[UnmarkedPass]:
    """Draft, verify, plain or other for each piece; drafts that follow each other are one round."""
    layers = [_num_layers(work, piece) for piece in pieces]
    most = max(layers, default=0)
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
