"""The attention and MLP blocks of a Llama-type layer, cut over the ranks of a communicator.

Column-parallel projections are merged (query+key+value, gate+up) and need no communication; row-parallel ones return
this rank's partial sum, which the decoder layer hands to the communicator. Nothing here calls a collective.
Source: Megatron-LM, arXiv:1909.08053, section 3.
T = packed token rows, D = hidden size, H = local query heads, K = local kv heads, d = head size, I = local MLP width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fastverify.model_config import ModelConfig
from fastverify.models.attention import Attention
from fastverify.models.linear import GatedLinear, Linear
from fastverify.models.norm import rms_norm
from fastverify.models.rope import Angles, rotate
from fastverify.models.sharding import Slots, local_size, local_span, shard_heads, whole

if TYPE_CHECKING:
    from fastverify.comm.communicator import Communicator


class SelfAttention(nn.Module):
    """Grouped-query attention with this rank's heads; its output is a partial sum."""

    def __init__(self, config: ModelConfig, communicator: Communicator, layer: int, num_inputs: int) -> None:
        super().__init__()
        self.layer, self.rank = layer, communicator.rank
        self.head_dim = config.head_dim
        self.full_heads, self.full_kv_heads = config.num_heads, config.num_kv_heads
        self.eps = config.rms_norm_eps
        self.shard = shard_heads(config.num_heads, config.num_kv_heads, communicator.rank, communicator.world_size)
        self.num_heads, self.num_rotated = self.shard.num_heads, self.shard.num_heads + self.shard.num_kv_heads
        self.head_counts = (self.num_heads, self.shard.num_kv_heads, self.shard.num_kv_heads)
        self.qkv = Linear(
            num_inputs, (self.num_rotated + self.shard.num_kv_heads) * self.head_dim, bias=config.qkv_bias
        )
        self.output = Linear(self.num_heads * self.head_dim, config.hidden_size, bias=config.output_bias)
        self.q_norm = nn.Parameter(torch.ones(self.head_dim)) if config.qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(self.head_dim)) if config.qk_norm else None

    def forward(self, x_TD: torch.Tensor, angles: Angles, attention: Attention) -> torch.Tensor:
        """This rank's partial sum [T, D] of the attention output."""
        num_rows = x_TD.shape[0]
        heads_Thd = self.qkv.forward(x_TD).view(num_rows, -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            heads_Thd = self._normed(heads_Thd, self.q_norm, self.k_norm)
        q_THd, k_TKd, v_TKd = rotate(heads_Thd, self.num_rotated, angles).split_with_sizes(self.head_counts, 1)
        out_THd = attention.attend(self.layer, q_THd, k_TKd, v_TKd)
        return self.output.forward(out_THd.reshape(num_rows, -1))

    def _normed(self, heads_Thd: torch.Tensor, q_norm: torch.Tensor, k_norm: torch.Tensor) -> torch.Tensor:
        q_THd, k_TKd, v_TKd = heads_Thd.split_with_sizes(self.head_counts, 1)
        return torch.cat((rms_norm(q_THd, q_norm, self.eps), rms_norm(k_TKd, k_norm, self.eps), v_TKd), 1)

    def slots(self, prefix: str) -> Slots:
        """Places of the tensors that a checkpoint calls `prefix`q_proj and so on."""
        d, kv_span = self.head_dim, self.shard.kv_heads.scaled(self.head_dim)
        q_span, full_q, full_kv = self.shard.heads.scaled(d), self.full_heads * d, self.full_kv_heads * d
        yield from self.qkv.row_slots(f"{prefix}q_proj", q_span, full_q, 0)
        yield from self.qkv.row_slots(f"{prefix}k_proj", kv_span, full_kv, self.num_heads * d)
        yield from self.qkv.row_slots(f"{prefix}v_proj", kv_span, full_kv, self.num_rotated * d)
        yield from self.output.column_slots(f"{prefix}o_proj", q_span, full_q, self.rank)
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                yield whole(f"{prefix}{name}.weight", norm.detach())


class GatedMlp(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) over this rank's columns; its output is a partial sum."""

    def __init__(self, config: ModelConfig, communicator: Communicator) -> None:
        super().__init__()
        self.rank, self.full_size = communicator.rank, config.intermediate_size
        self.size = local_size(self.full_size, communicator.world_size)
        self.span = local_span(self.full_size, communicator.rank, communicator.world_size)
        self.gate_up = GatedLinear(config.hidden_size, 2 * self.size, bias=config.mlp_bias)
        self.down = Linear(self.size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """This rank's partial sum [T, D]."""
        return self.down.forward(self.gate_up.forward(x_TD))

    def slots(self, prefix: str) -> Slots:
        """Places of `prefix`gate_proj, up_proj and down_proj."""
        yield from self.gate_up.row_slots(f"{prefix}gate_proj", self.span, self.full_size, 0)
        yield from self.gate_up.row_slots(f"{prefix}up_proj", self.span, self.full_size, self.size)
        yield from self.down.column_slots(f"{prefix}down_proj", self.span, self.full_size, self.rank)
