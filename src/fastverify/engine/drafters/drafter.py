"""The contract of a drafter: it sees what the target computed and proposes a tree per request.

A drafter may keep state per slot; a slot's state begins with the first `observe_prefill` of a request. All ranks call
the same methods in the same order and must get the same trees. Tests: tests/contracts/drafter_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Batch
from typing import Protocol

import torch

from fastverify.engine.acceptance import Acceptance
from fastverify.engine.draft_tree import DraftTree
from fastverify.engine.sequence import Sequence


class Drafter(Protocol):
    """Proposes drafts. T = rows of the pass, A = captured layers, D = target hidden size."""

    def observe_prefill(self, sequence: Sequence, start: int, aux_TAD: torch.Tensor | None) -> None:
        """Prompt rows `start`, `start + 1`, ... of `sequence` were computed; `aux_TAD` are theirs alone."""
        ...

    def propose(self, sequences: Batch[Sequence]) -> list[DraftTree]:
        """One tree per sequence, possibly empty."""
        ...

    def observe_verify(self, sequence: Sequence, acceptance: Acceptance, aux_TAD: torch.Tensor | None) -> None:
        """The accept tokens are appended; `aux_TAD` holds all verify rows of `sequence`, indexed by row."""
        ...
