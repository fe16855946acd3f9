"""Ways to run a sequence through a model, for tests."""

import torch

from fastverify.models.llama import LlamaForCausalLM
from tests.models.simple_attention import SimpleAttention


@torch.inference_mode()
def cached_logits(model: LlamaForCausalLM, token_ids: torch.Tensor, cuts: tuple[int, ...]) -> torch.Tensor:
    """Logits of every position when the cache is filled in pieces that end at `cuts`."""
    attention = SimpleAttention()
    positions = torch.arange(len(token_ids))
    bounds = (0, *cuts, len(token_ids))
    pieces = [
        model.logits(model(token_ids[start:stop], positions[start:stop], attention).hidden_TD)
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]
    return torch.cat(pieces)
