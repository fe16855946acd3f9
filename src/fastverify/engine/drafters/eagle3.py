"""EAGLE-3 drafting: extend the head over the rows the target has just computed, then draft a chain or a tree.

Row t of the head's cache pairs the target's hidden states at t with token t + 1. Rows whose hidden states are known but
which the head has not seen are pending; the next `propose` extends over them and drafts from the last one. Rows that
draft steps write behind them are provisional and are overwritten by the next extend.
Sources: EAGLE-3 arXiv:2503.01840; tree growth EAGLE-2 arXiv:2406.16858.
B = requests, W = pending rows per request (padded), D = head hidden size, A = captured layers, V = target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Batch

import torch

from fastverify.engine.acceptance import Acceptance
from fastverify.engine.attention import Segment, attend_over
from fastverify.engine.config import EngineConfig
from fastverify.engine.draft_tree import DraftTree, chain
from fastverify.engine.drafters.tree_growth import TreeGrowth
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.sampling import sample
from fastverify.engine.sequence import Sequence
from fastverify.models.eagle3 import Eagle3Head


class Eagle3Drafter:
    """Drafter with a model of one layer and a cache of its own."""

    def __init__(self, head: Eagle3Head, config: EngineConfig, clock: PhaseClock, dtype: torch.dtype) -> None:
        self._head = head
        self._config = config
        self._clock = clock
        num_rows = config.max_seq_len + config.num_verify_tokens + config.num_draft_steps * config.top_k
        head_dim = head.config.layer.head_dim
        self._cache = KVCache(1, config.max_batch, num_rows, head.num_local_kv_heads, head_dim, dtype)
        # Slot -> hidden states [W, A, D] of the rows just before `num_cached` that the head has not seen.
        self._pending: dict[int, torch.Tensor] = {}

    def observe_prefill(self, sequence: Sequence, start: int, aux_TAD: torch.Tensor | None) -> None:
        """See `Drafter`. The last prompt row stays pending, since the token after it is not chosen yet."""
        assert aux_TAD is not None, "the target captures hidden states whenever a head is loaded"
        num_rows = aux_TAD.shape[0]
        if start + num_rows == sequence.num_prompt_tokens:
            self._pending[sequence.slot] = aux_TAD[-1:]
            num_rows -= 1
        if num_rows > 0:
            token_ids = torch.tensor(sequence.token_ids[start + 1 : start + 1 + num_rows])
            self._forward(
                token_ids,
                self._head.fuse(aux_TAD[:num_rows]),
                torch.arange(start, start + num_rows),
                [Segment(sequence.slot, start, num_rows)],
            )

    def propose(self, sequences: Batch[Sequence]) -> list[DraftTree]:
        """See `Drafter`."""
        with self._clock.phase("extend"):
            hidden_BD = self._extend(sequences)
        with self._clock.phase("draft"):
            if self._config.draft_shape == "tree":
                return self._draft_trees(sequences, hidden_BD)
            if all(sequence.is_greedy for sequence in sequences):
                return self._draft_greedy_chains(sequences, hidden_BD)
            return self._draft_sampled_chains(sequences, hidden_BD)

    def observe_verify(self, sequence: Sequence, acceptance: Acceptance, aux_TAD: torch.Tensor | None) -> None:
        """See `Drafter`."""
        assert aux_TAD is not None, "the target captures hidden states whenever a head is loaded"
        rows = acceptance.rows
        is_prefix = rows[-1] == len(rows) - 1
        self._pending[sequence.slot] = aux_TAD[: len(rows)] if is_prefix else aux_TAD[list(rows)]

    def _extend(self, sequences: Batch[Sequence]) -> torch.Tensor:
        """Run the head over every pending row; its state [B, D] after the last one of each request."""
        pending = [self._pending.pop(sequence.slot) for sequence in sequences]
        sizes = [aux_WAD.shape[0] for aux_WAD in pending]
        width = max(sizes)
        token_ids: list[int] = []
        positions: list[int] = []
        segments = []
        for sequence, size in zip(sequences, sizes, strict=True):
            start = sequence.num_cached - size
            padding = width - size
            token_ids += sequence.token_ids[start + 1 :] + [0] * padding
            positions += range(start, start + width)
            segments.append(Segment(sequence.slot, start, width))
        aux = pending[0] if len(pending) == 1 else torch.cat([_padded(aux_WAD, width) for aux_WAD in pending])
        hidden = self._forward(torch.tensor(token_ids), self._head.fuse(aux), torch.tensor(positions), segments)
        if len(sequences) == 1:
            return hidden[-1:]
        return hidden[[request * width + size - 1 for request, size in enumerate(sizes)]]

    def _forward(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, segments: Batch[Segment]
    ) -> torch.Tensor:
        next_hidden: torch.Tensor = self._head(token_ids, hidden, positions, attend_over(self._cache, segments))
        return next_hidden

    def _step(
        self, sequences: Batch[Sequence], step: int, token_ids_B: torch.Tensor, hidden_BD: torch.Tensor
    ) -> torch.Tensor:
        """Draft step `step` = 1, 2, ... of a chain: one row per request, behind its cached rows."""
        starts = [sequence.num_cached + step - 1 for sequence in sequences]
        segments = [Segment(sequence.slot, start, 1) for sequence, start in zip(sequences, starts, strict=True)]
        return self._forward(token_ids_B, hidden_BD, torch.tensor(starts), segments)

    def _draft_greedy_chains(self, sequences: Batch[Sequence], hidden_BD: torch.Tensor) -> list[DraftTree]:
        drafts_B = [self._most_probable(hidden_BD)]
        for step in range(1, self._config.num_draft_steps):
            hidden_BD = self._step(sequences, step, drafts_B[-1], hidden_BD)
            drafts_B.append(self._most_probable(hidden_BD))
        return [chain(token_ids) for token_ids in torch.stack(drafts_B, 1).tolist()]

    def _draft_sampled_chains(self, sequences: Batch[Sequence], hidden_BD: torch.Tensor) -> list[DraftTree]:
        """Chains of a batch in which some requests sample: those keep the distributions they were drawn from."""
        token_ids: list[list[int]] = [[] for _ in sequences]
        probs: list[list[torch.Tensor]] = [[] for _ in sequences]
        for step in range(self._config.num_draft_steps):
            if step > 0:
                newest_B = torch.tensor([ids[-1] for ids in token_ids])
                hidden_BD = self._step(sequences, step, newest_B, hidden_BD)
            greedy_B = self._most_probable(hidden_BD).tolist()
            for row, sequence in enumerate(sequences):
                if sequence.is_greedy:
                    token_ids[row].append(greedy_B[row])
                    continue
                probs_V = self._head.probs(hidden_BD[row : row + 1], sequence.temperature)[0]
                probs[row].append(probs_V)
                token_ids[row].append(sample(probs_V, sequence.generator))
        return [chain(ids, torch.stack(p) if p else None) for ids, p in zip(token_ids, probs, strict=True)]

    def _draft_trees(self, sequences: Batch[Sequence], hidden_BD: torch.Tensor) -> list[DraftTree]:
        """Trees grown level by level; all requests take part in each draft step."""
        growths = [TreeGrowth(self._config.top_k) for _ in sequences]
        self._add_children(growths, hidden_BD)
        for step in range(1, self._config.num_draft_steps):
            segments, token_ids, positions, parents = [], [], [], []
            for request, (sequence, growth) in enumerate(zip(sequences, growths, strict=True)):
                frontier = growth.expand()
                start = sequence.num_cached + (step - 1) * self._config.top_k
                segments.append(Segment(sequence.slot, start, len(frontier.token_ids), frontier.tail_mask()))
                token_ids += frontier.token_ids
                positions += [sequence.num_cached + step - 1] * len(frontier.token_ids)
                # The first level's parent is the extended row; later levels' are rows of the step before.
                num_parents = 1 if step == 1 else self._config.top_k
                parents += [request * num_parents + parent for parent in frontier.parent_indices]
            hidden_BD = self._forward(torch.tensor(token_ids), hidden_BD[parents], torch.tensor(positions), segments)
            self._add_children(growths, hidden_BD)
        return [growth.best(self._config.num_verify_tokens - 1) for growth in growths]

    def _add_children(self, growths: Batch[TreeGrowth], hidden: torch.Tensor) -> None:
        """Give every node of the newest level its most probable children."""
        log_probs, token_ids = self._most_probable_k(hidden, self._config.top_k)
        all_log_probs, all_token_ids = log_probs.tolist(), token_ids.tolist()
        width = len(all_token_ids) // len(growths)
        for request, growth in enumerate(growths):
            rows = slice(request * width, (request + 1) * width)
            growth.add_children(all_token_ids[rows], all_log_probs[rows])

    def _most_probable(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Target token id [T] of the best draft, by the configured exchange."""
        if self._config.draft_token_exchange == "local_argmax":
            return self._head.greedy(hidden_TD)
        return self._head.to_target_ids(self._head.logits(hidden_TD).argmax(-1))

    def _most_probable_k(self, hidden_TD: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and target ids [T, k] of the best drafts, by the configured exchange."""
        if self._config.draft_token_exchange == "local_argmax":
            return self._head.top_k(hidden_TD, k)
        log_probs, draft_ids = self._head.logits(hidden_TD).float().log_softmax(-1).topk(k, -1)
        return log_probs, self._head.to_target_ids(draft_ids)


def _padded(aux_WAD: torch.Tensor, width: int) -> torch.Tensor:
    """Repeat the last row up to `width` rows; what the head makes of the repeats is never read."""
    return torch.cat((aux_WAD, aux_WAD[-1:].expand(width - aux_WAD.shape[0], -1, -1)))
