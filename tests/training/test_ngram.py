"""The Kneser-Ney baseline: a probability distribution, and better with more context."""

import numpy as np
import pytest

from fastverify.errors import ConfigError
from fastverify.training.ngram import NgramModel

VOCAB_SIZE = 7


def text(seed: int, count: int) -> "np.typing.NDArray[np.uint16]":
    """A sequence in which every token mostly follows from the two before it."""
    rng = np.random.default_rng(seed)
    tokens = [1, 2]
    for _ in range(count):
        tokens.append(
            int((2 * tokens[-1] + tokens[-2]) % VOCAB_SIZE if rng.random() < 0.8 else rng.integers(VOCAB_SIZE))
        )
    return np.array(tokens, np.uint16)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_of_all_tokens_add_up_to_one(order: int) -> None:
    model = NgramModel(text(0, 500), order, VOCAB_SIZE)
    for context in (text(1, 5)[:order], np.zeros(order, np.uint16)):
        candidates = [np.append(context[1:], token).astype(np.uint16) for token in range(VOCAB_SIZE)]
        total = sum(np.exp(-model.nats(candidate))[0] for candidate in candidates)
        assert total == pytest.approx(1.0)


def test_context_helps() -> None:
    unseen = text(2, 2000)
    losses = {order: NgramModel(text(0, 20_000), order, VOCAB_SIZE).nats(unseen).mean() for order in (1, 2, 3)}
    assert losses[3] < 0.6 * losses[1]
    assert losses[2] > losses[3]


def test_refuses_what_does_not_fit_in_64_bits() -> None:
    with pytest.raises(ConfigError, match="64 bits"):
        NgramModel(text(0, 50), 6, VOCAB_SIZE)
