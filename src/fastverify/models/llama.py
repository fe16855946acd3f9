"""Llama, Qwen2 and Qwen3 decoders, tensor-parallel, for training, plain decoding and verification alike.

The residual stream starts at zero and every block - the embedding, then attention and MLP of each layer - adds its
partial sum to it in one fused all-reduce + residual + RMSNorm, with the weight of the norm that comes next. A pass of
L layers is therefore 2L + 1 all-reduces; logits or their arg-max take one gather.
It knows nothing of caches, masks or batches: see attention.py. Source: arXiv:2302.13971; transformers is the oracle.
T = packed token rows, A = captured layers, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastverify.errors import ConfigError
from fastverify.model_config import ModelConfig
from fastverify.models.attention import Attention
from fastverify.models.parallel import GatedMlp, SelfAttention
from fastverify.models.rope import Rope
from fastverify.models.sharding import Slots, whole
from fastverify.models.vocab_parallel import VocabParallelEmbedding, VocabParallelHead

if TYPE_CHECKING:
    from fastverify.comm.communicator import Communicator


@dataclass(frozen=True)
class TargetOutput:
    """`hidden_TD` after the final norm; `aux_TAD` the captured residual streams, None when nothing is captured."""

    hidden_TD: torch.Tensor
    aux_TAD: torch.Tensor | None


class DecoderLayer(nn.Module):
    """Parameters of one layer; the model strings the blocks together."""

    def __init__(self, config: ModelConfig, communicator: Communicator, layer: int) -> None:
        super().__init__()
        self.input_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.attention = SelfAttention(config, communicator, layer, config.hidden_size)
        self.post_attention_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.mlp = GatedMlp(config, communicator)

    def slots(self, prefix: str) -> Slots:
        """Places of the layer's tensors."""
        yield whole(f"{prefix}input_layernorm.weight", self.input_norm.detach())
        yield from self.attention.slots(f"{prefix}self_attn.")
        yield whole(f"{prefix}post_attention_layernorm.weight", self.post_attention_norm.detach())
        yield from self.mlp.slots(f"{prefix}mlp.")


class LlamaForCausalLM(nn.Module):
    """A decoder with this rank's part of every weight. `capture_layers` are the streams that EAGLE-3 reads."""

    def __init__(self, config: ModelConfig, communicator: Communicator, capture_layers: tuple[int, ...] = ()) -> None:
        super().__init__()
        config.require_runnable()
        _check_capture(capture_layers, config.num_layers)
        self.config, self.communicator, self.capture_layers = config, communicator, capture_layers
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, communicator)
        self._blocks = tuple(DecoderLayer(config, communicator, i) for i in range(config.num_layers))
        self.layers = nn.ModuleList(self._blocks)
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        tied = self.embed_tokens.weight if config.tie_word_embeddings else None
        self.head = VocabParallelHead(config.vocab_size, config.hidden_size, communicator, tied)
        self.rope = Rope(config)

    def forward(self, token_ids_T: torch.Tensor, positions_T: torch.Tensor, attention: Attention) -> TargetOutput:
        """One pass over packed rows. Both inputs are int64 [T]; `attention` knows which rows see which."""
        partial_TD = self.embed_tokens.forward(token_ids_T)
        residual_TD = torch.zeros_like(partial_TD)
        angles = self.rope.forward(positions_T, partial_TD.dtype)
        add_and_norm, eps = self.communicator.all_reduce_residual_rmsnorm, self.config.rms_norm_eps
        captured = []
        for index, layer in enumerate(self._blocks):
            hidden_TD, residual_TD = add_and_norm(partial_TD, residual_TD, layer.input_norm, eps)
            if index in self.capture_layers:
                captured.append(residual_TD.clone())
            partial_TD = layer.attention.forward(hidden_TD, angles, attention)
            hidden_TD, residual_TD = add_and_norm(partial_TD, residual_TD, layer.post_attention_norm, eps)
            partial_TD = layer.mlp.forward(hidden_TD)
        hidden_TD, residual_TD = add_and_norm(partial_TD, residual_TD, self.norm, eps)
        if self.config.num_layers in self.capture_layers:
            captured.append(residual_TD)
        return TargetOutput(hidden_TD, torch.stack(captured, 1) if captured else None)

    def local_logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Logits [T, V/R] of this rank's part of the vocabulary, -inf for padding."""
        return self.head.local_logits(hidden_TD)

    def logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Logits [T, V], the same on every rank; one gather."""
        return self.head.logits(hidden_TD)

    def greedy(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Token id [T] of the largest logit, the lowest id of equals; gathers two numbers per row."""
        return self.head.greedy(hidden_TD)

    @property
    def num_local_heads(self) -> int:
        """Query heads that `attend` sees on this rank, padding included."""
        return self._blocks[0].attention.shard.num_heads

    @property
    def num_local_kv_heads(self) -> int:
        """Key/value heads that a cache holds per layer on this rank, padding included."""
        return self._blocks[0].attention.shard.num_kv_heads

    def slots(self) -> Slots:
        """Place of every tensor of a Hugging Face checkpoint."""
        yield from self.embed_tokens.slots("model.embed_tokens.weight")
        for index, layer in enumerate(self._blocks):
            yield from layer.slots(f"model.layers.{index}.")
        yield whole("model.norm.weight", self.norm.detach())
        if not self.config.tie_word_embeddings:
            yield from self.head.slots("lm_head.weight")


def _check_capture(capture_layers: tuple[int, ...], num_layers: int) -> None:
    if any(not 0 <= layer <= num_layers for layer in capture_layers) or list(capture_layers) != sorted(capture_layers):
        raise ConfigError(f"capture_layers must be ascending numbers in 0..{num_layers}, got {list(capture_layers)}.")
