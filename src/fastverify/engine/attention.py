"""Attention of one pass over the KV cache: appends the new rows, masks them, and runs one fused kernel per layer.

Our own kernel where it runs (native_attention.py); the rest of this file prepares torch's.
Implements `models.attention.Attention`. Rows of a request see all its earlier rows; among the newest rows a mask says
who sees whom: causal, or the ancestors in a draft tree. Grouped query heads are folded into rows, so one request and
a few rows cost a handful of operations per layer.
T = rows of one request, B = requests, G = query heads per kv head, K = kv heads, L = visible cache rows, d = head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from fastverify.engine.draft_tree import ancestor_rows
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.native_attention import NativeAttention
from fastverify.models.attention import Attention
from fastverify.models.kernels import kernels_for


@dataclass(frozen=True)
class Segment:
    """New rows of one request: `num_rows` of them behind the `start` rows that are cached.

    `tail_mask` [num_rows, M] is 0 where a new row may see one of the last M rows (new ones included), else -inf;
    earlier rows are always visible. None: causal.
    """

    slot: int
    start: int
    num_rows: int
    tail_mask: torch.Tensor | None = None

    @property
    def end(self) -> int:
        """Cached rows after the pass."""
        return self.start + self.num_rows


def attend_over(cache: KVCache, segments: Sequence[Segment]) -> Attention:
    """Attention of a pass whose packed rows are those of `segments`, in order."""
    kernels = kernels_for(cache.both)
    if kernels is not None:
        return NativeAttention(kernels.simd, cache, segments)
    if len(segments) == 1:
        return _SlotAttention(cache, segments[0])
    if len({segment.num_rows for segment in segments}) == 1:
        return _BatchAttention(cache, segments)
    return _PackedAttention(cache, segments)


@lru_cache(maxsize=4096)
def tree_mask(parents: tuple[int, ...], num_rows: int) -> torch.Tensor | None:
    """`Segment.tail_mask` of the verify rows of a tree, padded to `num_rows`; None where that is the causal mask."""
    if parents == tuple(range(num_rows - 1)):
        return None
    mask = torch.full((num_rows, num_rows), -torch.inf)
    for row, visible in enumerate(ancestor_rows(parents)):
        mask[row, visible] = 0.0
    mask.fill_diagonal_(0.0)
    return mask


class _SlotAttention:
    """One request: every view of the cache is made once per pass."""

    def __init__(self, cache: KVCache, segment: Segment) -> None:
        start, end = segment.start, segment.end
        rows = cache.both[:, :, segment.slot, :end]
        self.new_keys, self.new_values = (x.unbind(0) for x in rows[:, :, start:].unbind(0))
        self.keys, self.values = (x.unbind(0) for x in rows.transpose(2, 3).unsqueeze(2).unbind(0))
        self.num_kv_heads = cache.num_kv_heads
        self.segment = segment
        self.dtype = cache.both.dtype
        self.mask: torch.Tensor | None = None
        self.has_mask = segment.num_rows > 1 or segment.tail_mask is not None

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        self.new_keys[layer].copy_(k_TKd)
        self.new_values[layer].copy_(v_TKd)
        num_rows, num_heads, head_dim = q_THd.shape
        num_kv_heads = self.num_kv_heads
        num_groups = num_heads // num_kv_heads
        if self.has_mask and self.mask is None:
            self.mask = _slot_mask(self.segment, num_groups).to(self.dtype)
        if num_rows == 1:
            q_1KGd = q_THd.reshape(1, num_kv_heads, num_groups, head_dim)
            out_1KGd = scaled_dot_product_attention(q_1KGd, self.keys[layer], self.values[layer], self.mask)
            return out_1KGd.view(1, num_heads, head_dim)
        q_TKGd = q_THd.view(num_rows, num_kv_heads, num_groups, head_dim)
        q_1KRd = q_TKGd.transpose(0, 1).reshape(1, num_kv_heads, num_rows * num_groups, head_dim)
        out_1KRd = scaled_dot_product_attention(q_1KRd, self.keys[layer], self.values[layer], self.mask)
        out_KTGd = out_1KRd.view(num_kv_heads, num_rows, num_groups, head_dim)
        return out_KTGd.transpose(0, 1).reshape(num_rows, num_heads, head_dim)


class _BatchAttention:
    """Several requests with equally many rows each: one kernel over the longest of them."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.num_kv_heads = cache.num_kv_heads
        self.num_visible = max(segment.end for segment in segments)
        self.flat_keys, self.flat_values = (x.unbind(0) for x in cache.both.flatten(2, 3).unbind(0))
        self.rows = _flat_rows(segments, cache.num_rows)
        self.keys, self.values = cache.keys, cache.values
        slots = [segment.slot for segment in segments]
        self.first_slot = slots[0] if slots == list(range(slots[0], slots[0] + len(slots))) else None
        self.slots = torch.tensor(slots)
        self.dtype = cache.both.dtype
        self.mask: torch.Tensor | None = None

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        self.flat_keys[layer].index_copy_(0, self.rows, k_TKd)
        self.flat_values[layer].index_copy_(0, self.rows, v_TKd)
        num_packed, num_heads, head_dim = q_THd.shape
        num_requests, num_kv_heads = len(self.segments), self.num_kv_heads
        num_rows, num_groups = num_packed // num_requests, num_heads // num_kv_heads
        if self.mask is None:
            self.mask = _batch_mask(self.segments, num_groups, self.num_visible).to(self.dtype)
        q_BTKGd = q_THd.view(num_requests, num_rows, num_kv_heads, num_groups, head_dim)
        q_BKRd = q_BTKGd.transpose(1, 2).reshape(num_requests, num_kv_heads, num_rows * num_groups, head_dim)
        keys_BKLd, values_BKLd = self._visible(self.keys[layer]), self._visible(self.values[layer])
        out_BKRd = scaled_dot_product_attention(q_BKRd, keys_BKLd, values_BKLd, self.mask)
        out_BKTGd = out_BKRd.view(num_requests, num_kv_heads, num_rows, num_groups, head_dim)
        return out_BKTGd.transpose(1, 2).reshape(num_packed, num_heads, head_dim)

    def _visible(self, rows_SLKd: torch.Tensor) -> torch.Tensor:
        """Rows of the requests' slots, [B, K, L, d]: a view where the slots are neighbours."""
        rows_SLKd = rows_SLKd[:, : self.num_visible]
        if self.first_slot is not None:
            return rows_SLKd[self.first_slot : self.first_slot + len(self.segments)].transpose(1, 2)
        return rows_SLKd.index_select(0, self.slots).transpose(1, 2)


class _PackedAttention:
    """Requests with different numbers of rows, such as prompt chunks: one after the other."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment]) -> None:
        self.parts = [_SlotAttention(cache, segment) for segment in segments]
        self.sizes = [segment.num_rows for segment in segments]

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        pieces = zip(*(torch.split(x, self.sizes) for x in (q_THd, k_TKd, v_TKd)), strict=True)
        return torch.cat([part.attend(layer, q, k, v) for part, (q, k, v) in zip(self.parts, pieces, strict=True)])


# Arbitrary: above this many rows the mask is computed per pass, where it is cheap next to the pass.
_MAX_BAND_ROWS = 32


def _slot_mask(segment: Segment, num_groups: int) -> torch.Tensor:
    """[T * G, L], 0 or -inf; the G query heads of a row share its mask."""
    if segment.tail_mask is not None:
        return _spread(segment, segment.end).repeat_interleave(num_groups, 0)
    if segment.num_rows <= _MAX_BAND_ROWS:
        capacity = 1 << max(10, segment.end.bit_length())
        shift = capacity - segment.start
        return _causal_band(segment.num_rows, num_groups, capacity)[:, shift : shift + segment.end]
    return _spread(segment, segment.end).repeat_interleave(num_groups, 0)


@lru_cache(maxsize=256)
def _causal_band(num_rows: int, num_groups: int, capacity: int) -> torch.Tensor:
    """[T * G, capacity + T]: column c of row t is visible when c <= capacity + t. A pass takes a shifted window."""
    columns, rows = torch.arange(capacity + num_rows), torch.arange(num_rows)
    hidden = columns > capacity + rows[:, None]
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf).repeat_interleave(num_groups, 0)


def _batch_mask(segments: Sequence[Segment], num_groups: int, num_visible: int) -> torch.Tensor:
    """[B, 1, T * G, L], 0 or -inf."""
    masks = torch.stack([_spread(segment, num_visible) for segment in segments])
    return masks.repeat_interleave(num_groups, 1).unsqueeze(1)


def _spread(segment: Segment, num_visible: int) -> torch.Tensor:
    """[T, L] mask of one request over `num_visible` columns."""
    columns = torch.arange(num_visible)
    last_visible = segment.start + torch.arange(segment.num_rows)[:, None]
    if segment.tail_mask is not None:
        last_visible = torch.full_like(last_visible, segment.end - 1)
    mask = torch.zeros(segment.num_rows, num_visible).masked_fill_(columns > last_visible, -torch.inf)
    if segment.tail_mask is not None:
        mask[:, segment.end - segment.tail_mask.shape[1] : segment.end] = segment.tail_mask
    return mask


def _flat_rows(segments: Sequence[Segment], rows_per_slot: int) -> torch.Tensor:
    """Where the packed new rows go in a cache whose slots are flattened."""
    firsts = torch.tensor([segment.slot * rows_per_slot + segment.start for segment in segments])
    return (firsts[:, None] + torch.arange(segments[0].num_rows)).flatten()
