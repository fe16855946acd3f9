"""Attention of one pass over the KV cache by our own kernel: any mix of requests, rows and masks, one call per layer.

A row's result depends on what the row sees and not on the pass it is part of, so a verify pass and plain decoding
agree bit for bit. The arithmetic is in csrc/cpu/attention_impl.hpp.
T = packed rows, H = query heads, K = kv heads, d = head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fastverify.engine.kv_cache import KVCache

if TYPE_CHECKING:
    from fastverify.engine.attention import Segment


class NativeAttention:
    """Implements `models.attention.Attention` for a float32 cache on a CPU."""

    def __init__(self, simd: str, cache: KVCache, segments: Sequence[Segment]) -> None:
        from fastverify.models import _kernels

        # Both are read by address until the pass is over.
        self._cache = cache.both
        self._masks = [None if s.tail_mask is None else s.tail_mask.contiguous() for s in segments]
        _, _, num_slots, num_rows, num_kv_heads, head_dim = cache.both.shape
        self._attention = _kernels.CachedAttention(
            simd,
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            (num_slots, num_rows, num_kv_heads, head_dim),
            [(s.slot, s.start, s.num_rows, *_location(m)) for s, m in zip(segments, self._masks, strict=True)],
        )

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """See `Attention`. The heads of a row are contiguous."""
        out_THd = torch.empty(q_THd.shape)
        self._attention.attend(
            layer,
            q_THd.shape[1],
            q_THd.data_ptr(),
            q_THd.stride(0),
            k_TKd.data_ptr(),
            k_TKd.stride(0),
            v_TKd.data_ptr(),
            v_TKd.stride(0),
            out_THd.data_ptr(),
        )
        return out_THd


def _location(mask: torch.Tensor | None) -> tuple[int, int]:
    """Address and number of columns."""
    return (0, 0) if mask is None else (mask.data_ptr(), mask.shape[1])
