"""Which runtime calls launch device work, and which rows of two tables name each other by correlation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastverify.trace.events import Bool, Int64

GRAPH_LAUNCH = re.compile(r"GraphLaunch")
LAUNCH = re.compile(r"Launch(?!HostFunc)")
_BLOCK_ROWS = 1 << 16


def is_in(values: Int64, known: Int64) -> Bool:
    """Which values are in `known`, sorted. In blocks: the tables of a long file are large."""
    found = np.zeros(len(values), dtype=np.bool_)
    for begin in range(0, len(values) if len(known) else 0, _BLOCK_ROWS):
        block = values[begin : begin + _BLOCK_ROWS]
        where = np.minimum(np.searchsorted(known, block), len(known) - 1)
        found[begin : begin + _BLOCK_ROWS] = known[where] == block
    return found


def where_name(names: Sequence[str], ids: NDArray[np.int32], rule: Callable[[str], object]) -> Bool:
    """The rule on each row's name, asked once per name."""
    answers = np.zeros(len(names), dtype=np.bool_)
    for name in np.flatnonzero(np.bincount(ids, minlength=len(names))).tolist():
        answers[name] = bool(rule(names[name]))
    return answers[ids]
