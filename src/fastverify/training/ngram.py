"""An interpolated Kneser-Ney n-gram model over tokens: the baseline that a neural model has to beat.

All counts live in sorted arrays of packed n-grams (12 bits per token), so tens of millions of tokens fit in memory.
Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1998, section 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastverify.errors import ConfigError

BITS_PER_TOKEN = 12
MAX_ORDER = 64 // BITS_PER_TOKEN
# Source: Chen and Goodman 1998 find 0.7 to 0.8 for counts of this size.
DISCOUNT = 0.75

Packed = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """Counts of one order: n-grams, and the totals and number of different continuations of their contexts."""

    ngrams: Packed
    counts: Counts
    contexts: Packed
    totals: Counts
    num_continuations: Counts


class NgramModel:
    """Probabilities of tokens after their up to `order - 1` predecessors."""

    def __init__(self, token_ids: npt.NDArray[np.uint16], order: int, vocab_size: int) -> None:
        if vocab_size > 1 << BITS_PER_TOKEN or not 1 <= order <= MAX_ORDER:
            raise ConfigError(
                f"n-grams are packed in 64 bits: at most {1 << BITS_PER_TOKEN} tokens and order {MAX_ORDER}, "
                f"got {vocab_size} and {order}."
            )
        self._vocab_size = vocab_size
        ngrams, counts = np.unique(pack(token_ids, order), return_counts=True)
        orders = [_order(ngrams, counts)]
        for length in range(order - 1, 0, -1):
            # A lower order counts in how many different contexts an n-gram was seen, not how often.
            suffixes = ngrams & np.uint64((1 << (BITS_PER_TOKEN * length)) - 1)
            ngrams, counts = np.unique(suffixes, return_counts=True)
            orders.append(_order(ngrams, counts))
        self._orders = orders[::-1]

    def nats(self, token_ids: npt.NDArray[np.uint16]) -> Floats:
        """Negative log-probability of every token that has a whole context before it."""
        longest = len(self._orders)
        probabilities = np.full(len(token_ids) - longest + 1, 1.0 / self._vocab_size)
        for length, order in enumerate(self._orders, 1):
            ngrams = pack(token_ids, length)[longest - length :]
            probabilities = _interpolate(order, ngrams, probabilities)
        nats: Floats = -np.log(probabilities)
        return nats


def pack(token_ids: npt.NDArray[np.uint16], length: int) -> Packed:
    """Every n-gram of `length` tokens as one integer, the last token lowest."""
    count = len(token_ids) - length + 1
    packed = np.zeros(count, np.uint64)
    for offset in range(length):
        packed = (packed << np.uint64(BITS_PER_TOKEN)) | token_ids[offset : offset + count].astype(np.uint64)
    return packed


def _order(ngrams: Packed, counts: Counts) -> Order:
    contexts, starts, num_continuations = np.unique(
        ngrams >> np.uint64(BITS_PER_TOKEN), return_index=True, return_counts=True
    )
    return Order(ngrams, counts, contexts, np.add.reduceat(counts, starts), num_continuations)


def _interpolate(order: Order, ngrams: Packed, lower: Floats) -> Floats:
    """Discounted counts of this order, and what was discounted spread by the lower order."""
    counts = _look_up(order.ngrams, order.counts, ngrams)
    contexts = ngrams >> np.uint64(BITS_PER_TOKEN)
    totals = _look_up(order.contexts, order.totals, contexts)
    num_continuations = _look_up(order.contexts, order.num_continuations, contexts)
    safe_totals = np.maximum(totals, 1)
    discounted = np.maximum(counts - DISCOUNT, 0.0) + DISCOUNT * num_continuations * lower
    return np.where(totals > 0, discounted / safe_totals, lower)


def _look_up(keys: Packed, values: Counts, wanted: Packed) -> Counts:
    positions = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[positions] == wanted, values[positions], 0)
