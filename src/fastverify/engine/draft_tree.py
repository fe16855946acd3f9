"""Draft tokens of one request as a tree: what a drafter proposes and a verify pass checks.

Verify row 0 is the current token, row i + 1 is draft i; a parent is a row and comes before its children. A chain is
the tree in which every row follows the one before. Growth keeps the most probable nodes of a larger tree.
Knows nothing of models. Source of the growth rule: EAGLE-2, arXiv:2406.16858, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fastverify.errors import ShapeError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DraftTree:
    """Proposed drafts of one request.

    `draft_probs` is float [num_drafts, vocab] when every draft of a chain was sampled from that row; None when the
    drafts were chosen in any other way (arg-max, top-k, look-up): acceptance then treats them as point proposals.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    draft_probs: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents):
            raise ShapeError(
                f"a tree has one parent per token, got {len(self.token_ids)} and {len(self.parents)} of them."
            )
        if any(not 0 <= parent <= draft for draft, parent in enumerate(self.parents)):
            raise ShapeError(f"the parent of draft i is a row in 0..i, got parents {self.parents}.")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether every draft follows the one before it."""
        return self.parents == tuple(range(len(self.parents)))

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """(row, token) -> the row of the child with that token."""
        edges = zip(self.parents, self.token_ids, strict=True)
        return {edge: draft + 1 for draft, edge in reversed(list(enumerate(edges)))}


EMPTY_TREE = DraftTree((), ())


def chain(token_ids: Sequence[int], draft_probs: torch.Tensor | None = None) -> DraftTree:
    """Drafts that follow each other."""
    return DraftTree(tuple(token_ids), tuple(range(len(token_ids))), draft_probs)


def row_depths(parents: Sequence[int]) -> list[int]:
    """Depth of every verify row; the current token has depth 0."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return depths


def ancestor_rows(parents: Sequence[int]) -> list[list[int]]:
    """For every verify row, the rows it may attend to: its ancestors and itself, ascending."""
    visible = [[0]]
    for draft, parent in enumerate(parents):
        visible.append([*visible[parent], draft + 1])
    return visible


def keep_most_probable(
    token_ids: Sequence[int], parents: Sequence[int], log_probs: Sequence[float], count: int
) -> DraftTree:
    """The `count` nodes with the highest joint log-probability, as a tree.

    A child is never more probable than its parent and ties keep the earlier node, so the kept nodes stay connected.
    """
    by_probability = sorted(range(len(token_ids)), key=lambda node: (-log_probs[node], node))
    kept = sorted(by_probability[:count])
    new_row = {0: 0} | {node + 1: row for row, node in enumerate(kept, start=1)}
    return DraftTree(tuple(token_ids[node] for node in kept), tuple(new_row[parents[node]] for node in kept))


def merge_branches(branches: Sequence[Sequence[int]], count: int) -> DraftTree:
    """Token sequences as one tree with shared prefixes; earlier branches first, at most `count` nodes."""
    token_ids: list[int] = []
    parents: list[int] = []
    row_of: dict[tuple[int, int], int] = {}
    for branch in branches:
        row = 0
        for token_id in branch:
            child = row_of.get((row, token_id))
            if child is None:
                if len(token_ids) == count:
                    break
                token_ids.append(token_id)
                parents.append(row)
                child = row_of[row, token_id] = len(token_ids)
            row = child
    return DraftTree(tuple(token_ids), tuple(parents))
