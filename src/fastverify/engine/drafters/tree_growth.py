"""Growth of one draft tree: expand the most probable leaves level by level, then keep the best nodes of all levels.

Probability of a node = product of the draft probabilities on its path. Pure bookkeeping: the drafter runs the model.
Source: EAGLE-2, arXiv:2406.16858, section 4 (expansion phase and reranking phase).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastverify.engine.draft_tree import DraftTree, keep_most_probable


@dataclass(frozen=True)
class Frontier:
    """Nodes that one draft step computes. `parent_indices`: each node's parent within the frontier before (0 at the
    first level). `visible_rows`: per node, the provisional cache rows of its ancestors and itself."""

    token_ids: list[int]
    parent_indices: list[int]
    visible_rows: list[list[int]]
    num_rows: int

    def tail_mask(self) -> torch.Tensor:
        """Mask of the frontier over all provisional rows so far; see `attention.Segment`."""
        mask = torch.full((len(self.token_ids), self.num_rows), -torch.inf)
        for node, visible in enumerate(self.visible_rows):
            mask[node, visible] = 0.0
        return mask


class TreeGrowth:
    """A growing tree. Call `add_children` for the root, then alternate `expand` and `add_children`."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._token_ids: list[int] = []
        self._parents: list[int] = []  # verify row of the parent: 0 is the current token, node i is row i + 1
        self._log_probs: list[float] = []
        self._newest: list[int] = []  # nodes of the newest level
        self._expanded: list[int] = [-1]  # nodes of the newest frontier; -1 is the current token
        self._visible_rows: dict[int, list[int]] = {-1: []}
        self._num_rows = 0

    def add_children(self, token_ids: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> None:
        """Children of every node of the newest frontier, in its order."""
        self._newest = []
        for node, child_ids, child_log_probs in zip(self._expanded, token_ids, log_probs, strict=True):
            joint = self._log_probs[node] if node >= 0 else 0.0
            for token_id, log_prob in zip(child_ids, child_log_probs, strict=True):
                self._newest.append(len(self._token_ids))
                self._token_ids.append(token_id)
                self._parents.append(node + 1)
                self._log_probs.append(joint + log_prob)

    def expand(self) -> Frontier:
        """Choose the `top_k` most probable nodes of the newest level for the next draft step."""
        chosen = sorted(self._newest, key=lambda node: (-self._log_probs[node], node))[: self._top_k]
        place = {node: index for index, node in enumerate(self._expanded)}
        parents = [self._parents[node] - 1 for node in chosen]
        for row, (node, parent) in enumerate(zip(chosen, parents, strict=True), start=self._num_rows):
            self._visible_rows[node] = [*self._visible_rows[parent], row]
        self._num_rows += len(chosen)
        self._expanded = chosen
        return Frontier(
            token_ids=[self._token_ids[node] for node in chosen],
            parent_indices=[place[parent] for parent in parents],
            visible_rows=[self._visible_rows[node] for node in chosen],
            num_rows=self._num_rows,
        )

    def best(self, count: int) -> DraftTree:
        """The `count` most probable nodes of all levels."""
        return keep_most_probable(self._token_ids, self._parents, self._log_probs, count)
