"""Continuations of many equally long prompts at once, with a KV cache: the head's training data, and evaluation."""

from __future__ import annotations

import torch

from fastverify.models.llama import LlamaForCausalLM
from fastverify.training.attention import CachedAttention


@torch.no_grad()
def generate(
    model: LlamaForCausalLM,
    prompts_BP: torch.Tensor,
    num_tokens: int,
    temperature_B: torch.Tensor,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Prompts and `num_tokens` tokens after them, int64 [B, P + num_tokens]. Temperature 0 means greedy.

    End-of-text does not stop a sequence: what follows it is the beginning of another document.
    """
    num_sequences, prompt_length = prompts_BP.shape
    attention = CachedAttention(num_sequences, prompt_length + num_tokens)
    sequences = [prompts_BP]
    inputs, position = prompts_BP, 0
    for _ in range(num_tokens):
        rows = inputs.shape[1]
        positions_T = (torch.arange(rows, device=inputs.device) + position).repeat(num_sequences)
        hidden_TD = model(inputs.flatten(), positions_T, attention).hidden_TD
        attention.advance(rows)
        position += rows
        logits_BV = model.logits(hidden_TD.view(num_sequences, rows, -1)[:, -1]).float()
        inputs = sample(logits_BV, temperature_B, generator)[:, None]
        sequences.append(inputs)
    return torch.cat(sequences, 1)


def sample(
    logits_BV: torch.Tensor, temperature_B: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """One token per row: the largest of logits plus temperature times Gumbel noise, which is exact sampling."""
    # Minus the logarithm of an exponential variable is Gumbel noise; an exact zero would be infinite.
    exponential = torch.empty_like(logits_BV).exponential_(generator=generator).clamp_(min=1e-30)
    return (logits_BV - temperature_B[:, None] * exponential.log()).argmax(-1)
