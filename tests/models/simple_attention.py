"""The simplest cached causal attention of one sequence: per layer, a list of key and value tensors. For tests only."""

import torch
from torch.nn import functional as F


class SimpleAttention:
    """Rows of every call continue the sequence; row t sees everything up to itself."""

    def __init__(self) -> None:
        self.keys: dict[int, list[torch.Tensor]] = {}
        self.values: dict[int, list[torch.Tensor]] = {}

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        self.keys.setdefault(layer, []).append(k_TKd)
        self.values.setdefault(layer, []).append(v_TKd)
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THd, torch.cat(self.keys[layer]), torch.cat(self.values[layer])))
        num_new, num_all = q.shape[2], k.shape[2]
        mask = torch.ones(num_new, num_all, dtype=torch.bool).tril(num_all - num_new)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)
