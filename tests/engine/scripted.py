"""Drafters for tests that know the future: they propose the true continuation among wrong drafts, so that runs of every
length are accepted and rejected, in chains and in trees of any shape."""

from __future__ import annotations

import random
from collections.abc import Sequence as Batch

import torch

from fastverify.engine.acceptance import Acceptance
from fastverify.engine.draft_tree import EMPTY_TREE, DraftTree, chain
from fastverify.engine.drafters.drafter import Drafter
from fastverify.engine.sequence import Sequence

VOCAB_FOR_NOISE = 48


class ScriptedDrafter:
    """`continuations`: request id -> prompt and true output. `inner` is a real drafter that is kept informed and whose
    own proposals are recorded and thrown away."""

    def __init__(
        self,
        continuations: dict[str, list[int]],
        max_drafts: int,
        *,
        tree: bool,
        seed: int,
        inner: Drafter | None = None,
    ) -> None:
        self._continuations = continuations
        self._max_drafts = max_drafts
        self._tree = tree
        self._random = random.Random(seed)
        self._inner = inner
        self.inner_proposals: list[tuple[tuple[int, ...], DraftTree]] = []

    def observe_prefill(self, sequence: Sequence, start: int, aux_TAD: torch.Tensor | None) -> None:
        if self._inner is not None:
            self._inner.observe_prefill(sequence, start, aux_TAD)

    def propose(self, sequences: Batch[Sequence]) -> list[DraftTree]:
        if self._inner is not None:
            for sequence, tree in zip(sequences, self._inner.propose(sequences), strict=True):
                self.inner_proposals.append((tuple(sequence.token_ids), tree))
        return [self._propose_one(sequence) for sequence in sequences]

    def observe_verify(self, sequence: Sequence, acceptance: Acceptance, aux_TAD: torch.Tensor | None) -> None:
        if self._inner is not None:
            self._inner.observe_verify(sequence, acceptance, aux_TAD)

    def _propose_one(self, sequence: Sequence) -> DraftTree:
        done = len(sequence.token_ids)
        num_correct = self._random.randint(0, self._max_drafts)
        truth = self._continuations[sequence.request_id][done : done + num_correct]
        if not self._tree:
            return chain([*truth, *self._noise(self._max_drafts - len(truth))])
        return self._hide_in_tree(truth)

    def _hide_in_tree(self, truth: list[int]) -> DraftTree:
        """The true path and wrong nodes in a random order that keeps parents before children."""
        token_ids: list[int] = []
        parents: list[int] = []
        newest_true_row, num_placed = 0, 0
        while len(token_ids) < self._max_drafts:
            is_true_turn = num_placed < len(truth) and (
                self._random.random() < 0.5 or self._max_drafts - len(token_ids) == len(truth) - num_placed
            )
            if is_true_turn:
                token_ids.append(truth[num_placed])
                parents.append(newest_true_row)
                newest_true_row = len(token_ids)
                num_placed += 1
            else:
                token_ids += self._noise(1)
                parents.append(self._random.randint(0, len(parents)))
        return DraftTree(tuple(token_ids), tuple(parents)) if token_ids else EMPTY_TREE

    def _noise(self, count: int) -> list[int]:
        return [self._random.randrange(VOCAB_FOR_NOISE) for _ in range(count)]
