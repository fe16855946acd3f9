"""How good a target is (bits per byte) and how often its head guesses right (acceptance), without an engine.

Bits per byte does not depend on the tokenizer. Acceptance is computed on sequences that the target itself produced:
the head drafts from every position at once, as in training, and accepting along the sequence gives the law of
speculative decoding. Greedy: a draft counts while it equals the target's own next token. Sampling: a target token y is
accepted with probability min(1, draft_prob(y) / target_prob(y)), the maximal coupling that rejection sampling draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.llama import LlamaForCausalLM, TargetOutput
from fastverify.training.attention import CausalAttention, DraftStepAttention
from fastverify.training.corpus.tokens import END_OF_TEXT


@dataclass(frozen=True)
class TextScore:
    """Loss over a piece of text."""

    bits_per_byte: float
    nats_per_token: float
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True)
class Acceptance:
    """Speculative decoding over some sequences. Position i is the share of passes where draft i was correct."""

    accept_length: float
    accept_rate_per_position: tuple[float, ...]
    num_verify_passes: int


@torch.no_grad()
def score_tokens(
    model: LlamaForCausalLM, token_ids: torch.Tensor, tokenizer: Tokenizer, window: int = 1024, batch_size: int = 8
) -> TextScore:
    """Score a token stream in windows that overlap by half, so that each token has at least half a window before it."""
    stride = window // 2
    nats, counted = 0.0, 0
    starts = range(0, max(len(token_ids) - window, 0) + 1, stride)
    windows = torch.stack([token_ids[start : start + window] for start in starts]).long()
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        losses = token_losses(model, batch)
        # The very first window counts whole; later ones only their second half.
        skip = [0 if first + row == 0 else stride - 1 for row in range(len(batch))]
        nats += sum(float(losses[row, skip[row] :].double().sum()) for row in range(len(batch)))
        counted += sum(losses.shape[1] - begin for begin in skip)
    covered = token_ids[1 : 1 + counted].tolist()
    num_bytes = count_bytes(tokenizer, covered)
    return TextScore(nats / math.log(2) / num_bytes, nats / counted, counted, num_bytes)


def count_bytes(tokenizer: Tokenizer, token_ids: list[int]) -> int:
    """UTF-8 bytes of the text that the tokens stand for; the ends of documents are no text."""
    return len(tokenizer.decode(token_ids, skip_special_tokens=False).replace(END_OF_TEXT, "").encode())


def token_losses(model: LlamaForCausalLM, token_ids_BS: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood in nats of tokens 1.. of each sequence, [B, S - 1]."""
    hidden_TD = run_target(model, token_ids_BS[:, :-1]).hidden_TD
    losses = F.cross_entropy(model.logits(hidden_TD).float(), token_ids_BS[:, 1:].flatten(), reduction="none")
    return losses.view(len(token_ids_BS), -1)


def run_target(model: LlamaForCausalLM, token_ids_BS: torch.Tensor) -> TargetOutput:
    """One causal pass over equally long sequences."""
    num_sequences, length = token_ids_BS.shape
    positions_T = torch.arange(length, device=token_ids_BS.device).repeat(num_sequences)
    output: TargetOutput = model(token_ids_BS.flatten(), positions_T, CausalAttention(num_sequences))
    return output


@torch.no_grad()
def measure_acceptance(
    model: LlamaForCausalLM,
    head: Eagle3Head,
    token_ids_BS: torch.Tensor,
    prompt_length: int,
    num_drafts: int,
    temperature: float,
    seed: int = 0,
) -> Acceptance:
    """Chain drafting of `num_drafts` tokens over sequences that `model` produced at `temperature` (0: greedy)."""
    output = run_target(model, token_ids_BS)
    assert output.aux_TAD is not None, "the target captures what the head reads"
    num_sequences, length = token_ids_BS.shape
    target_logits = model.logits(output.hidden_TD).float().view(num_sequences, length, -1)
    generator = torch.Generator(device=token_ids_BS.device).manual_seed(seed)
    hidden_TD, attention = head.fuse(output.aux_TAD), DraftStepAttention(num_sequences)
    positions_T = torch.arange(length, device=token_ids_BS.device).repeat(num_sequences)
    flags = []
    for step in range(num_drafts):
        inputs, drafted = (shifted(token_ids_BS, step + offset) for offset in (1, 2))
        hidden_TD = head(inputs.flatten(), hidden_TD, positions_T + step, attention)
        if temperature == 0:
            correct = head.greedy(hidden_TD).view_as(drafted) == drafted
        else:
            draft_probs = head.probs(hidden_TD, temperature).view(num_sequences, length, -1)
            target_probs = shifted(target_logits / temperature, step + 1).softmax(-1)
            ratio = (_at(draft_probs, drafted) / _at(target_probs, drafted)).clamp(max=1.0)
            correct = torch.rand(ratio.shape, generator=generator, device=ratio.device) < ratio
        flags.append(correct)
    return walk_passes(torch.stack(flags, -1), prompt_length)


def shifted(x_BS: torch.Tensor, offset: int) -> torch.Tensor:
    """Column t of the result is column t + offset; what lies behind the end repeats the last column."""
    length = x_BS.shape[1]
    columns = (torch.arange(length, device=x_BS.device) + offset).clamp(max=length - 1)
    return x_BS[:, columns]


def _at(probs_BSV: torch.Tensor, token_ids_BS: torch.Tensor) -> torch.Tensor:
    return probs_BSV.gather(-1, token_ids_BS[..., None])[..., 0]


def walk_passes(correct_BSN: torch.Tensor, prompt_length: int) -> Acceptance:
    """Verify passes along each sequence: accept the leading correct drafts and the bonus token, go on from there."""
    num_drafts = correct_BSN.shape[-1]
    leading = correct_BSN.long().cumprod(-1).cpu()
    counts = leading.sum(-1).tolist()
    passes, per_position = 0, torch.zeros(num_drafts, dtype=torch.long)
    for sequence, row_counts in enumerate(counts):
        # The token at `current` is committed; row current - 1 pairs it with the hidden state before it.
        current = prompt_length
        while current + num_drafts < len(row_counts):
            per_position += leading[sequence, current - 1]
            passes += 1
            current += row_counts[current - 1] + 1
    rates = tuple(float(count) / max(passes, 1) for count in per_position)
    return Acceptance(1 + sum(rates), rates, passes)
