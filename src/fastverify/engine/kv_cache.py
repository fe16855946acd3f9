"""Keys and values of every running request: one slot of consecutive rows per request and layer.

Rows of a slot are in token order once compacted; a verify pass appends its candidates behind them, and what was not
accepted is overwritten by the next pass. A slot is freed by forgetting its number. Knows no masks and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KVCache:
    """`keys` and `values`: [layers, slots, rows, kv_heads, head_dim].

    Token-major rows make appending a contiguous copy and compaction one gather for all layers.
    """

    def __init__(
        self, num_layers: int, num_slots: int, num_rows: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        # Zeros, not empty: a masked row is multiplied by 0, and 0 * NaN would be NaN.
        self.both = torch.zeros(2, num_layers, num_slots, num_rows, num_kv_heads, head_dim, dtype=dtype)
        self.keys, self.values = self.both.unbind(0)
        self.num_rows = num_rows
        self.num_kv_heads = num_kv_heads

    def keep_path(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Make row `start + path[i]` row `start + i`, in every layer. `path` is ascending."""
        num_in_place = 0
        while num_in_place < len(path) and path[num_in_place] == num_in_place:
            num_in_place += 1
        if num_in_place == len(path):
            return
        sources = torch.tensor([start + row for row in path[num_in_place:]])
        first = start + num_in_place
        rows = self.both[:, :, slot]
        rows[:, :, first : first + len(sources)] = rows.index_select(2, sources)
