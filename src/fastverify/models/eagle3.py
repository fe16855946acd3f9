"""The EAGLE-3 head: one decoder layer that guesses the next token from the target's hidden states.

Its input is the token embedding beside the fused hidden state, each normed; the stream is the hidden state. What it
returns is the stream before the final norm (after it with `norm_output`), fed back as the next draft step's hidden
state. Given the target's communicator it is sharded (three all-reduces a step); given a single-rank communicator it is
a full copy without collectives. Training-time test and drafting live elsewhere.
Source: arXiv:2503.01840; on-disk switches as SGLang, vLLM and SpecForge read them.
T = packed token rows, A = captured layers, D = hidden size, V = target vocabulary, k = how many best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fastverify.errors import ConfigError
from fastverify.model_config import Eagle3Config
from fastverify.models.attention import Attention
from fastverify.models.linear import Linear
from fastverify.models.norm import rms_norm
from fastverify.models.parallel import GatedMlp, SelfAttention
from fastverify.models.rope import Rope
from fastverify.models.sharding import Slots, whole
from fastverify.models.vocab_parallel import VocabParallelEmbedding, VocabParallelHead

if TYPE_CHECKING:
    from fastverify.comm.communicator import Communicator


class Eagle3Head(nn.Module):
    """Draft model. `embed_tokens` is the target's when both are sharded alike, else a table of the head's own."""

    def __init__(self, config: Eagle3Config, communicator: Communicator, embed_tokens: VocabParallelEmbedding) -> None:
        super().__init__()
        _check_embedding(config, communicator, embed_tokens)
        self.config, self.communicator, self.embed_tokens = config, communicator, embed_tokens
        size, self.eps = config.layer.hidden_size, config.layer.rms_norm_eps
        num_captured, target_size = len(config.capture_layers), config.target_hidden_size
        self.fc = Linear(num_captured * target_size, size, bias=config.fc_bias)
        self.aux_norms = nn.ParameterList(torch.ones(target_size) for _ in range(num_captured * config.fc_norm))
        self.fc_input_norm = nn.Parameter(torch.ones(num_captured * target_size)) if config.norm_before_fc else None
        self.input_norm = nn.Parameter(torch.ones(size))
        self.hidden_norm = nn.Parameter(torch.ones(size))
        self.attention = SelfAttention(config.layer, communicator, 0, 2 * size)
        self.post_attention_norm = nn.Parameter(torch.ones(size))
        self.mlp = GatedMlp(config.layer, communicator)
        self.norm = nn.Parameter(torch.ones(size))
        self.head = VocabParallelHead(config.draft_vocab_size, size, communicator)
        self.rope = Rope(config.layer)
        self.d2t: torch.Tensor
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    def fuse(self, aux_TAD: torch.Tensor) -> torch.Tensor:
        """The target's captured streams, lowest layer first, as one hidden state [T, D]."""
        if len(self.aux_norms):
            normed = [rms_norm(aux_TAD[:, i], weight, self.eps) for i, weight in enumerate(self.aux_norms)]
            aux_TAD = torch.stack(normed, 1)
        stacked = aux_TAD.flatten(1)
        if self.fc_input_norm is not None:
            stacked = rms_norm(stacked, self.fc_input_norm, self.eps)
        return self.fc.forward(stacked)

    def forward(
        self, token_ids_T: torch.Tensor, hidden_TD: torch.Tensor, positions_T: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Next hidden state [T, D]. Row t pairs the hidden state of position t with the token at t + 1."""
        embedded_TD = rms_norm(
            self.communicator.all_reduce(self.embed_tokens.forward(token_ids_T)), self.input_norm, self.eps
        )
        normed_TD = rms_norm(hidden_TD, self.hidden_norm, self.eps)
        # The communicator may add to the stream in place; the caller keeps its hidden states.
        residual_TD = normed_TD if self.config.norm_before_residual else hidden_TD.clone()
        angles = self.rope.forward(positions_T, hidden_TD.dtype)
        partial_TD = self.attention.forward(torch.cat((embedded_TD, normed_TD), -1), angles, attention)
        mlp_input_TD, residual_TD = self.communicator.all_reduce_residual_rmsnorm(
            partial_TD, residual_TD, self.post_attention_norm, self.eps
        )
        stream_TD = residual_TD + self.communicator.all_reduce(self.mlp.forward(mlp_input_TD))
        return rms_norm(stream_TD, self.norm, self.eps) if self.config.norm_output else stream_TD

    def local_logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Logits of this rank's part of the draft vocabulary, of the states that `forward` returned."""
        return self.head.local_logits(self._final(hidden_TD))

    def logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Logits over the whole draft vocabulary; one gather when sharded."""
        return self.head.logits(self._final(hidden_TD))

    def greedy(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Target token id [T] of the most probable draft."""
        return self.to_target_ids(self.head.greedy(self._final(hidden_TD)))

    def top_k(self, hidden_TD: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and target token ids [T, k] of the k most probable drafts, best first."""
        log_probs_Tk, draft_ids_Tk = self.head.top_k(self._final(hidden_TD), k)
        return log_probs_Tk, self.to_target_ids(draft_ids_Tk)

    def probs(self, hidden_TD: torch.Tensor, temperature: float) -> torch.Tensor:
        """Draft probabilities [T, V] over the target's vocabulary, float32, zero for ids outside the draft's."""
        if not temperature > 0:
            raise ConfigError(f"temperature must be above 0 to give probabilities, got {temperature}. Use greedy().")
        draft_probs = (self.logits(hidden_TD).float() / temperature).softmax(-1)
        if self.config.draft_vocab_size == self.config.layer.vocab_size:
            return draft_probs
        target_ids = torch.arange(self.config.draft_vocab_size, device=self.d2t.device) + self.d2t
        scattered = draft_probs.new_zeros(draft_probs.shape[0], self.config.layer.vocab_size)
        return scattered.index_copy_(1, target_ids, draft_probs)

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Target vocabulary ids of draft vocabulary ids."""
        return draft_ids + self.d2t.take(draft_ids)

    @property
    def num_local_heads(self) -> int:
        """Query heads that `attend` sees on this rank, padding included."""
        return self.attention.shard.num_heads

    @property
    def num_local_kv_heads(self) -> int:
        """Key/value heads that a cache holds on this rank, padding included."""
        return self.attention.shard.num_kv_heads

    def _final(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        return hidden_TD if self.config.norm_output else rms_norm(hidden_TD, self.norm, self.eps)

    def slots(self) -> Slots:
        """Place of every tensor of an EAGLE-3 file except the embedding and `t2d`, under the `midlayer` names."""
        yield whole("fc.weight", self.fc.weight.detach())
        if self.fc.bias is not None:
            yield whole("fc.bias", self.fc.bias.detach())
        for index, weight in enumerate(self.aux_norms):
            yield whole(f"fc_norm.{index}.weight", weight.detach())
        if self.fc_input_norm is not None:
            yield whole("input_norm.weight", self.fc_input_norm.detach())
        yield whole("midlayer.input_layernorm.weight", self.input_norm.detach())
        yield whole("midlayer.hidden_norm.weight", self.hidden_norm.detach())
        yield from self.attention.slots("midlayer.self_attn.")
        yield whole("midlayer.post_attention_layernorm.weight", self.post_attention_norm.detach())
        yield from self.mlp.slots("midlayer.mlp.")
        yield whole("norm.weight", self.norm.detach())
        yield from self.head.slots("lm_head.weight")
        yield whole("d2t", self.d2t)


def _check_embedding(config: Eagle3Config, communicator: Communicator, embedding: VocabParallelEmbedding) -> None:
    size = embedding.weight.shape[1]
    if embedding.is_full != (communicator.world_size == 1):
        raise ConfigError(
            f"an EAGLE-3 head over {communicator.world_size} rank(s) needs an embedding cut the same way, got one that "
            f"is {'full' if embedding.is_full else 'cut'}. Give it a table of its own (load_draft does)."
        )
    if size != config.layer.hidden_size:
        raise ConfigError(
            f"the head's embedding must be {config.layer.hidden_size} wide, got {size}. A head of another width "
            f"than its target needs embed_tokens.weight in its own file."
        )
