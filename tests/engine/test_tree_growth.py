"""Growth against brute force on a draft model that is a table of conditional probabilities."""

import itertools
import math
import random

import pytest
import torch

from fastverify.engine.draft_tree import row_depths
from fastverify.engine.drafters.tree_growth import TreeGrowth

VOCAB = 4


def log_probs_after(path: tuple[int, ...]) -> list[float]:
    draw = random.Random(hash(path))
    weights = [draw.random() + 0.05 for _ in range(VOCAB)]
    return [math.log(weight / sum(weights)) for weight in weights]


def children(path: tuple[int, ...], top_k: int) -> tuple[list[int], list[float]]:
    log_probs = log_probs_after(path)
    best = sorted(range(VOCAB), key=lambda token: -log_probs[token])[:top_k]
    return best, [log_probs[token] for token in best]


def grow(depth: int, top_k: int) -> tuple[TreeGrowth, list[torch.Tensor]]:
    growth, masks = TreeGrowth(top_k), []
    ids, log_probs = children((), top_k)
    growth.add_children([ids], [log_probs])
    paths: list[tuple[int, ...]] = [()]
    for _ in range(depth - 1):
        frontier = growth.expand()
        masks.append(frontier.tail_mask())
        paths = [(*paths[p], t) for p, t in zip(frontier.parent_indices, frontier.token_ids, strict=True)]
        each = [children(path, top_k) for path in paths]
        growth.add_children([ids for ids, _ in each], [log_probs for _, log_probs in each])
    return growth, masks


def joint(path: tuple[int, ...]) -> float:
    return sum(log_probs_after(path[:i])[token] for i, token in enumerate(path))


@pytest.mark.parametrize(("depth", "top_k", "count"), [(3, 2, 4), (3, 4, 7), (4, 3, 6), (2, 4, 20), (3, 1, 3)])
def test_the_best_nodes_are_kept(depth: int, top_k: int, count: int) -> None:
    tree = grow(depth, top_k)[0].best(count)
    paths: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*paths[parent], token_id))
    assert len(set(paths)) == len(paths) == count + 1
    assert max(row_depths(tree.parents)) <= depth
    if top_k == VOCAB and depth == 2:
        every = [path for n in (1, 2) for path in itertools.product(range(VOCAB), repeat=n)]
        assert set(paths[1:]) == set(sorted(every, key=joint, reverse=True)[:count])
    # No grown node that was left out is more probable than one that was kept.
    frontier_children = {(*path, token) for path in paths for token in children(path, top_k)[0]}
    left_out = [path for path in frontier_children - set(paths) if len(path) == 1]
    assert all(joint(path) <= min(joint(kept) for kept in paths[1:]) + 1e-12 for path in left_out)


def test_masks_show_ancestors_among_the_provisional_rows() -> None:
    _, masks = grow(3, 2)
    assert [mask.shape for mask in masks] == [(2, 2), (2, 4)]
    assert torch.equal(masks[0] == 0, torch.eye(2, dtype=torch.bool))
    second = masks[1] == 0
    assert second[:, 2:].equal(torch.eye(2, dtype=torch.bool))
    assert second[:, :2].sum(1).tolist() == [1, 1]
