"""What a model asks of attention: one call per layer that knows the cache, the mask and the softmax scale.

Models know none of those. The engine's attention reads and writes its KV cache and applies a tree mask; training's
is causal over whole sequences. Queries and keys arrive already rotated.
T = packed token rows of all requests, H = this rank's query heads, K = this rank's key/value heads, d = head size.
"""

from typing import Protocol

import torch


class Attention(Protocol):
    """Scaled dot-product attention of one forward pass, scale d ** -0.5."""

    def attend(self, layer: int, q_THd: torch.Tensor, k_TKd: torch.Tensor, v_TKd: torch.Tensor) -> torch.Tensor:
        """Output [T, H, d] of `layer`; stores the new keys and values if there is a cache.

        The inputs may be views of one buffer that nothing else writes to, contiguous in each row; query head h uses kv
        head h // (H // K).
        """
        ...
