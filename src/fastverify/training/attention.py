"""Attention over whole sequences for training, and over a growing cache for generation.

Rows are packed sequence by sequence, all of one length, so T = B * S. Queries and keys arrive rotated.
B = sequences, S = length, H = query heads, K = key/value heads, d = head size, N = draft steps so far.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


class CausalAttention:
    """Every sequence attends to itself, causally."""

    def __init__(self, num_sequences: int) -> None:
        self._num_sequences = num_sequences

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """Output [T, H, d]; nothing is stored."""
        q, k, v = (to_sequences(x, self._num_sequences) for x in (q_THd, k_TKd, v_TKd))
        return to_rows(causal(q, k, v))


class CachedAttention:
    """Causal attention over a cache that every pass extends by the same number of rows for all sequences."""

    def __init__(self, num_sequences: int, max_length: int) -> None:
        self._num_sequences, self._max_length = num_sequences, max_length
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._length = 0

    def advance(self, num_rows: int) -> None:
        """Tell that a pass over `num_rows` rows of every sequence is finished in all layers."""
        self._length += num_rows

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """Output [T, H, d]; keys and values are appended. Only the first pass may have several rows."""
        q, k, v = (to_sequences(x, self._num_sequences) for x in (q_THd, k_TKd, v_TKd))
        if layer not in self._cache:
            shape = (k.shape[0], k.shape[1], self._max_length, k.shape[3])
            self._cache[layer] = (v.new_empty(shape), v.new_empty(shape))
        keys, values = self._cache[layer]
        end = self._length + k.shape[2]
        keys[:, :, self._length : end] = k
        values[:, :, self._length : end] = v
        if self._length == 0:
            return to_rows(causal(q, k, v))
        # One row per sequence sees the whole cache; its query heads fold into rows of their kv head.
        grouped = q.to(v.dtype).reshape(k.shape[0], k.shape[1], -1, k.shape[3])
        out = F.scaled_dot_product_attention(grouped, keys[:, :, :end], values[:, :, :end])
        return to_rows(out.reshape(q.shape))


class DraftStepAttention:
    """Attention of EAGLE-3's training-time test, one object per batch and one `attend` per draft step.

    Draft step i of row t sees the keys of step 0 up to row t, which stand for the cached context, and its own keys of
    steps 1..i, which stand for the tokens drafted since.
    Source: arXiv:2503.01840, section 3.2.
    """

    def __init__(self, num_sequences: int) -> None:
        self._num_sequences = num_sequences
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """Output [T, H, d] of the next draft step."""
        q, k, v = (to_sequences(x, self._num_sequences) for x in (q_THd, k_TKd, v_TKd))
        self._keys.append(k.to(v.dtype))
        self._values.append(v)
        if len(self._keys) == 1:
            return to_rows(causal(q, k, v))
        own_keys, own_values = torch.stack(self._keys[1:], 3), torch.stack(self._values[1:], 3)
        return to_rows(draft_step(q.to(v.dtype), self._keys[0], self._values[0], own_keys, own_values))


def causal(q_BHSd: torch.Tensor, k_BKSd: torch.Tensor, v_BKSd: torch.Tensor) -> torch.Tensor:
    """Causal attention [B, H, S, d] in the dtype of the values."""
    dtype = v_BKSd.dtype
    return F.scaled_dot_product_attention(q_BHSd.to(dtype), k_BKSd.to(dtype), v_BKSd, is_causal=True, enable_gqa=True)


def draft_step(
    q_BHSd: torch.Tensor,
    k_BKSd: torch.Tensor,
    v_BKSd: torch.Tensor,
    own_k_BKSNd: torch.Tensor,
    own_v_BKSNd: torch.Tensor,
) -> torch.Tensor:
    """One softmax over the causal context and the row's own N drafts. Output [B, H, S, d]."""
    num_sequences, num_kv, length, size = k_BKSd.shape
    # Query heads of one kv head form a group g, so that keys are not repeated.
    q = q_BHSd.reshape(num_sequences, num_kv, -1, length, size) * size**-0.5
    context = torch.einsum("bkgsd,bktd->bkgst", q, k_BKSd)
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    context = context.masked_fill(future, -torch.inf)
    own = torch.einsum("bkgsd,bksnd->bkgsn", q, own_k_BKSNd)
    shares = torch.cat((context, own), -1).float().softmax(-1).to(v_BKSd.dtype)
    out = torch.einsum("bkgst,bktd->bkgsd", shares[..., :length], v_BKSd)
    out = out + torch.einsum("bkgsn,bksnd->bkgsd", shares[..., length:], own_v_BKSNd)
    return out.reshape(q_BHSd.shape)


def to_sequences(x_Thd: torch.Tensor, num_sequences: int) -> torch.Tensor:
    """[B * S, heads, d] as [B, heads, S, d]."""
    return x_Thd.view(num_sequences, -1, *x_Thd.shape[1:]).transpose(1, 2)


def to_rows(x_BhSd: torch.Tensor) -> torch.Tensor:
    """[B, heads, S, d] as [B * S, heads, d]."""
    return x_BhSd.transpose(1, 2).flatten(0, 1)
