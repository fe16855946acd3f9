"""Keep training and held-out text apart: exact duplicates, and documents that share many 13-word sequences.

A shared sequence alone means little (licences, idioms), so a document goes only when a share of its sequences is on
the other side. Sequences are compared by a 64-bit polynomial hash of their words' CRC-32.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastverify.training.corpus.documents import Document

NGRAM_WORDS = 13
MAX_SHARE_OF_TRAINING_DOCUMENT = 0.1
MAX_SHARE_OF_HELD_OUT_DOCUMENT = 0.2
_PRIME = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class OverlapReport:
    """What the separation dropped, and the share of held-out sequences that still occur in training text."""

    num_duplicates: int
    num_training_dropped: int
    num_held_out_dropped: int
    residual_share: float


def separate(documents: list[Document]) -> tuple[list[Document], list[Document], OverlapReport]:
    """(training, held-out, what was dropped) without exact duplicates and near copies."""
    unique = list({document.key: document for document in reversed(documents)}.values())[::-1]
    training = [document for document in unique if not document.held_out]
    held_out = [document for document in unique if document.held_out]
    held_hashes = [ngram_hashes(document.text) for document in held_out]
    held_set = np.unique(np.concatenate(held_hashes)) if held_hashes else np.empty(0, np.uint64)
    kept, shared = [], [np.empty(0, np.uint64)]
    for document in training:
        hashes = ngram_hashes(document.text)
        common = hashes[_contains(held_set, hashes)]
        if len(common) <= MAX_SHARE_OF_TRAINING_DOCUMENT * len(hashes):
            kept.append(document)
            shared.append(common)
    training_set = np.unique(np.concatenate(shared))
    in_training = [_contains(training_set, hashes) for hashes in held_hashes]
    pairs = list(zip(held_out, in_training, strict=True))
    clean = [(d, hits) for d, hits in pairs if hits.sum() <= MAX_SHARE_OF_HELD_OUT_DOCUMENT * len(hits)]
    total = sum(len(hits) for _, hits in clean)
    report = OverlapReport(
        num_duplicates=len(documents) - len(unique),
        num_training_dropped=len(training) - len(kept),
        num_held_out_dropped=len(held_out) - len(clean),
        residual_share=sum(int(hits.sum()) for _, hits in clean) / max(total, 1),
    )
    return kept, [document for document, _ in clean], report


def ngram_hashes(text: str) -> Hashes:
    """Hash of every 13-word sequence of the text."""
    words = np.array([zlib.crc32(word.encode()) for word in re.findall(r"\w+", text)], dtype=np.uint64)
    count = len(words) - NGRAM_WORDS + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    hashes = np.zeros(count, np.uint64)
    for offset in range(NGRAM_WORDS):
        hashes = hashes * _PRIME + words[offset : offset + count]
    return hashes


def _contains(sorted_set: Hashes, values: Hashes) -> npt.NDArray[np.bool_]:
    if len(sorted_set) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    positions = np.minimum(np.searchsorted(sorted_set, values), len(sorted_set) - 1)
    found: npt.NDArray[np.bool_] = sorted_set[positions] == values
    return found
