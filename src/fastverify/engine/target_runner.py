"""Passes of the target model over its cache: prompt chunks, and verify rows of many requests at once.

A plain pass is a verify pass over empty trees. Requests of one verify pass get equally many rows; what pads a smaller
tree is a row of its own that nobody else sees. Knows nothing of drafters, scheduling or time.
T = packed rows, A = captured layers, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Batch
from dataclasses import dataclass

import torch

from fastverify.engine.acceptance import Acceptance, accept_greedy, accept_sampled
from fastverify.engine.attention import Segment, attend_over, tree_mask
from fastverify.engine.draft_tree import DraftTree, row_depths
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.sampling import to_probs
from fastverify.engine.sequence import Sequence
from fastverify.models.llama import LlamaForCausalLM, TargetOutput


@dataclass(frozen=True)
class NextTokens:
    """What the target says about the token after each row: its arg-max, or its logits where a request samples."""

    greedy_token_ids: list[int] | None
    logits_TV: torch.Tensor | None

    def accept(self, sequence: Sequence, tree: DraftTree, first_row: int) -> Acceptance:
        """Accept tokens of a request whose current token is row `first_row`."""
        rows = slice(first_row, first_row + len(tree) + 1)
        if self.greedy_token_ids is not None:
            return accept_greedy(tree, self.greedy_token_ids[rows])
        assert self.logits_TV is not None, "one of the two is always there"
        logits_RV = self.logits_TV[rows]
        if sequence.is_greedy:
            return accept_greedy(tree, logits_RV.argmax(-1).tolist())
        return accept_sampled(tree, to_probs(logits_RV, sequence.temperature), sequence.generator)


@dataclass(frozen=True)
class Verified:
    """Result of a verify pass. Request i owns the rows from `i * num_rows`."""

    num_rows: int
    next_tokens: NextTokens
    aux_TAD: torch.Tensor | None

    def aux_of(self, request: int) -> torch.Tensor | None:
        """Captured hidden states of the rows of one request."""
        if self.aux_TAD is None:
            return None
        return self.aux_TAD[request * self.num_rows : (request + 1) * self.num_rows]


class TargetRunner:
    """The target model with its cache."""

    def __init__(self, model: LlamaForCausalLM, cache: KVCache) -> None:
        self.model = model
        self.cache = cache

    def verify(self, sequences: Batch[Sequence], trees: Batch[DraftTree]) -> Verified:
        """One pass over the current token and the drafts of every request; one gather besides the all-reduces."""
        num_rows = 1 + max(map(len, trees))
        token_ids: list[int] = []
        positions: list[int] = []
        segments = []
        for sequence, tree in zip(sequences, trees, strict=True):
            start = sequence.num_cached
            padding = [0] * (num_rows - 1 - len(tree))
            token_ids += (sequence.token_ids[-1], *tree.token_ids, *padding)
            positions += [start + depth for depth in row_depths((*tree.parents, *padding))]
            mask = tree_mask(tree.parents, num_rows)
            segments.append(Segment(sequence.slot, start, num_rows, mask))
        output = self._forward(token_ids, positions, segments)
        return Verified(num_rows, self.next_tokens(output.hidden_TD, sequences), output.aux_TAD)

    def prefill(self, chunks: Batch[tuple[Sequence, int]]) -> TargetOutput:
        """One pass over the next rows of several prompts; a chunk is (sequence, number of rows)."""
        token_ids: list[int] = []
        positions: list[int] = []
        segments = []
        for sequence, num_rows in chunks:
            start = sequence.num_cached
            token_ids += sequence.token_ids[start : start + num_rows]
            positions += range(start, start + num_rows)
            segments.append(Segment(sequence.slot, start, num_rows))
        return self._forward(token_ids, positions, segments)

    def next_tokens(self, hidden_TD: torch.Tensor, sequences: Batch[Sequence]) -> NextTokens:
        """The choice after every row; logits are gathered only if one of the sequences samples."""
        if all(sequence.is_greedy for sequence in sequences):
            return NextTokens(self.model.greedy(hidden_TD).tolist(), None)
        return NextTokens(None, self.model.logits(hidden_TD))

    def _forward(self, token_ids: list[int], positions: list[int], segments: Batch[Segment]) -> TargetOutput:
        output: TargetOutput = self.model(
            torch.tensor(token_ids), torch.tensor(positions), attend_over(self.cache, segments)
        )
        return output
