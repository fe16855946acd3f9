"""Greedy acceptance on hand-made trees; sampled acceptance against the target's distribution by chi-square."""

from collections import Counter
from collections.abc import Callable

import torch

from fastverify.engine.acceptance import Acceptance, accept_greedy, accept_sampled
from fastverify.engine.draft_tree import EMPTY_TREE, DraftTree, chain
from fastverify.engine.sampling import residual, sample

TREE = DraftTree((5, 6, 7, 8, 9), (0, 0, 1, 1, 2))


def test_the_longest_path_of_target_choices_is_accepted() -> None:
    assert accept_greedy(TREE, [5, 8, 0, 0, 3, 0]) == Acceptance((0, 1, 4), (5, 8, 3))
    assert accept_greedy(TREE, [6, 0, 0, 0, 0, 0]) == Acceptance((0, 2), (6, 0))
    assert accept_greedy(TREE, [1, 5, 5, 5, 5, 5]) == Acceptance((0,), (1,))
    assert accept_greedy(chain((1, 2, 3)), [1, 2, 3, 4]) == Acceptance((0, 1, 2, 3), (1, 2, 3, 4))
    assert accept_greedy(EMPTY_TREE, [4]).num_correct_drafts == 0


def test_equal_distributions_leave_no_residual() -> None:
    probs = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(probs, probs.clone()), probs)


VOCAB = 4
NUM_DRAWS = 3000
# 99.99 % quantile of chi-square with 15 degrees of freedom (16 pairs of tokens); seeds are fixed.
# Source: inverse chi-square distribution as tabulated by scipy.
CHI_SQUARE_LIMIT = 44.3


def target_probs(token_id: int | None) -> torch.Tensor:
    """A Markov target: what follows the current token (None) or a token."""
    logits = torch.tensor([[0.1, 1.0, -0.5, 0.3], [2.0, 0, 0, -1], [0, 1.5, -2, 0], [-1, 0, 1, 0], [0.5, 0, 0, 0.2]])
    return logits.softmax(-1)[0 if token_id is None else token_id + 1]


def draft_probs(token_id: int | None) -> torch.Tensor:
    """A draft model that is wrong, and never proposes token 3 after token 0."""
    probs = target_probs(token_id).roll(1) * 0.6 + target_probs(token_id) * 0.4
    if token_id == 0:
        probs[3] = 0.0
    return probs / probs.sum()


def verify_rows(tree: DraftTree) -> torch.Tensor:
    return torch.stack([target_probs(None), *(target_probs(token_id) for token_id in tree.token_ids)])


def chi_square_of_first_two(propose: Callable[[torch.Generator], DraftTree]) -> float:
    """Distance of the first two tokens' joint counts from the target's; tokens after a short run are plain draws."""
    generator = torch.Generator().manual_seed(3)
    counts: Counter[tuple[int, int]] = Counter()
    for _ in range(NUM_DRAWS):
        tree = propose(generator)
        tokens = list(accept_sampled(tree, verify_rows(tree), generator).token_ids)
        if len(tokens) == 1:
            tokens.append(sample(target_probs(tokens[0]), generator))
        counts[tokens[0], tokens[1]] += 1
    expected = {
        (first, second): NUM_DRAWS * float(target_probs(None)[first] * target_probs(first)[second])
        for first in range(VOCAB)
        for second in range(VOCAB)
    }
    return sum((counts[pair] - mean) ** 2 / mean for pair, mean in expected.items())


def sampled_chain(generator: torch.Generator) -> DraftTree:
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    for _ in range(3):
        rows.append(draft_probs(tokens[-1] if tokens else None))
        tokens.append(sample(rows[-1], generator))
    return chain(tokens, torch.stack(rows))


def test_a_sampled_chain_keeps_the_target_distribution() -> None:
    assert chi_square_of_first_two(sampled_chain) < CHI_SQUARE_LIMIT


def test_accepting_every_draft_would_be_noticed() -> None:
    def trusting(generator: torch.Generator) -> DraftTree:
        tree = sampled_chain(generator)
        return chain(tree.token_ids, verify_rows(tree)[:-1])

    assert chi_square_of_first_two(trusting) > 10 * CHI_SQUARE_LIMIT


def test_a_fixed_tree_keeps_the_target_distribution() -> None:
    tree = DraftTree((1, 3, 0, 2, 0), (0, 0, 1, 1, 2))
    assert chi_square_of_first_two(lambda generator: tree) < CHI_SQUARE_LIMIT
