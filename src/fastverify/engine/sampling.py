"""Temperature, sampling and the residual distribution: the arithmetic of lossless sampling, on one distribution each.

Every request draws from a generator of its own, so what it samples depends neither on its batch mates nor on the rank.
Knows nothing of trees. Source of the residual rule: Leviathan et al., arXiv:2211.17192, theorem 1 and appendix A.
"""

from __future__ import annotations

import hashlib

import torch


def create_generator(seed: int | None, engine_seed: int, request_id: str) -> torch.Generator:
    """Generator of one request: from its own seed, else from the engine's seed and its id."""
    if seed is None:
        digest = hashlib.sha256(f"{engine_seed}/{request_id}".encode()).digest()
        seed = int.from_bytes(digest[:8], "little")
    return torch.Generator().manual_seed(seed & (2**63 - 1))


def to_probs(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Softmax of `logits / temperature` over the last dimension, in float32."""
    return torch.softmax(logits.float() / temperature, -1)


def sample(probs_V: torch.Tensor, generator: torch.Generator) -> int:
    """One token id drawn from weights that need not sum to 1."""
    return int(torch.multinomial(probs_V, 1, generator=generator))


def accepts(token_id: int, target_probs_V: torch.Tensor, draft_probs_V: torch.Tensor, uniform: float) -> bool:
    """Whether a token drawn from the draft distribution is kept: with probability min(1, target / draft)."""
    return uniform * float(draft_probs_V[token_id]) < float(target_probs_V[token_id])


def residual(target_probs_V: torch.Tensor, draft_probs_V: torch.Tensor) -> torch.Tensor:
    """Weights of the replacement of a rejected draft: max(target - draft, 0), not normalised.

    They sum to 0 only when both distributions are equal up to rounding; then the target's own are returned.
    """
    weights = (target_probs_V - draft_probs_V).clamp_(min=0.0)
    return weights if float(weights.sum()) > 0.0 else target_probs_V
