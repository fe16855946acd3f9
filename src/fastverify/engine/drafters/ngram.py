"""Prompt look-up: what followed the last occurrences of the newest tokens is proposed again. No model, no rank talk.

Longer matches come first, then newer ones. One continuation makes a chain, several merge into a tree.
Source: apoorvumang/prompt-lookup-decoding; the tree of several matches is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Batch

import torch

from fastverify.engine.acceptance import Acceptance
from fastverify.engine.config import EngineConfig
from fastverify.engine.draft_tree import DraftTree, merge_branches
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.sequence import Sequence


class NgramIndex:
    """Where each n-gram of one sequence has ended, oldest first; grows with the sequence."""

    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._num_indexed = 0

    def update(self, token_ids: list[int]) -> None:
        """Index the tokens added since the last update."""
        for end in range(self._num_indexed + 1, len(token_ids) + 1):
            for length in self._lengths:
                if length <= end:
                    self._ends.setdefault(tuple(token_ids[end - length : end]), []).append(end)
        self._num_indexed = len(token_ids)

    def earlier_ends(self, token_ids: list[int]) -> Iterator[int]:
        """Ends of earlier occurrences of the newest tokens: longest n-gram first, then newest occurrence."""
        for length in reversed(self._lengths):
            if length < len(token_ids):
                for end in reversed(self._ends.get(tuple(token_ids[-length:]), ())):
                    if end < len(token_ids):
                        yield end


class NgramDrafter:
    """Drafter without a model. Its index of a slot starts anew with every request."""

    def __init__(self, config: EngineConfig, clock: PhaseClock) -> None:
        self._clock = clock
        self._lengths = range(config.ngram_min, config.ngram_max + 1)
        self._depth = config.num_draft_steps
        self._num_branches = config.top_k
        self._num_drafts = config.num_verify_tokens - 1
        self._indices: dict[int, NgramIndex] = {}

    def observe_prefill(self, sequence: Sequence, start: int, aux_TAD: torch.Tensor | None) -> None:
        """See `Drafter`."""
        if start == 0:
            self._indices[sequence.slot] = NgramIndex(self._lengths)

    def propose(self, sequences: Batch[Sequence]) -> list[DraftTree]:
        """See `Drafter`."""
        with self._clock.phase("draft"):
            return [self._propose_one(sequence) for sequence in sequences]

    def observe_verify(self, sequence: Sequence, acceptance: Acceptance, aux_TAD: torch.Tensor | None) -> None:
        """See `Drafter`. The tokens are read when drafts are next proposed."""

    def _propose_one(self, sequence: Sequence) -> DraftTree:
        index, token_ids = self._indices[sequence.slot], sequence.token_ids
        index.update(token_ids)
        branches: dict[tuple[int, ...], None] = {}
        for end in index.earlier_ends(token_ids):
            branches.setdefault(tuple(token_ids[end : end + self._depth]))
            if len(branches) == self._num_branches:
                break
        return merge_branches(list(branches), self._num_drafts)
