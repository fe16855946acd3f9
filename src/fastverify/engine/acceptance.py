"""Which drafts of a verified tree the target keeps, and the bonus token it adds.

Greedy and point proposals: walk down the tree as long as the token that the target chose is a child. With sampled
choices this is multi-candidate rejection sampling for candidates of probability 1: candidate c is accepted with the
target's probability of c, and on rejection that mass is removed and the rest renormalised, which together is one draw
from the target. It keeps the distribution however the candidates were chosen. Drafts sampled from the draft model
use Leviathan's rejection rule, which accepts more often.
Sources: arXiv:2211.17192; SpecInfer arXiv:2305.09781 section 4.3. Derivation: docs/speculative-decoding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fastverify.engine.draft_tree import DraftTree
from fastverify.engine.sampling import accepts, residual, sample


@dataclass(frozen=True)
class Acceptance:
    """`rows`: verify rows that stay in the cache, the current token's row 0 first. `token_ids`: accept tokens, that
    is the correct drafts and the bonus token; as many as `rows`."""

    rows: tuple[int, ...]
    token_ids: tuple[int, ...]

    @property
    def num_correct_drafts(self) -> int:
        """Accepted drafts; the bonus token is not one."""
        return len(self.token_ids) - 1


def accept_greedy(tree: DraftTree, target_token_ids: Sequence[int]) -> Acceptance:
    """Longest root path whose every draft equals the target's choice; `target_token_ids[row]` follows that row."""
    return _walk(tree, target_token_ids.__getitem__)


def accept_sampled(tree: DraftTree, target_probs_RV: torch.Tensor, generator: torch.Generator) -> Acceptance:
    """Acceptance that leaves the target's distribution unchanged; `target_probs_RV[row]` follows that row."""
    if tree.draft_probs is not None:
        return _accept_sampled_chain(tree, target_probs_RV, tree.draft_probs, generator)
    return _walk(tree, lambda row: sample(target_probs_RV[row], generator))


def _walk(tree: DraftTree, choose: Callable[[int], int]) -> Acceptance:
    """Follow the target's choices from the current token until one of them is no child."""
    rows, token_ids, row = [0], [], 0
    while True:
        token_id = choose(row)
        token_ids.append(token_id)
        child = tree.children.get((row, token_id))
        if child is None:
            return Acceptance(tuple(rows), tuple(token_ids))
        rows.append(child)
        row = child


def _accept_sampled_chain(
    tree: DraftTree, target_probs_RV: torch.Tensor, draft_probs_NV: torch.Tensor, generator: torch.Generator
) -> Acceptance:
    """Keep drafts while the rejection rule does; replace the first rejected one by a draw from the residual."""
    assert tree.is_chain, f"draft_probs belong to chains, got parents {tree.parents}"
    uniforms = torch.rand(len(tree), generator=generator).tolist()
    token_ids: list[int] = []
    for draft, token_id in enumerate(tree.token_ids):
        target_probs_V, draft_probs_V = target_probs_RV[draft], draft_probs_NV[draft]
        if not accepts(token_id, target_probs_V, draft_probs_V, uniforms[draft]):
            token_ids.append(sample(residual(target_probs_V, draft_probs_V), generator))
            break
        token_ids.append(token_id)
    else:
        token_ids.append(sample(target_probs_RV[len(tree)], generator))
    return Acceptance(tuple(range(len(token_ids))), tuple(token_ids))
