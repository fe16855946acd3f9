"""Rotary position embedding: frequencies of every supported scaling, angles of one pass, rotation of heads.

Half-rotation layout: element i of a head turns together with element i + d/2. Angles are computed per pass from the
positions (three small operations) instead of from a table, so that a 262144-token context costs no memory.
Sources: RoFormer arXiv:2104.09864; YaRN arXiv:2309.00071; the Llama 3.1 rule as its config.json names it.
T = packed token rows, h = heads, d = head size.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import nn

from fastverify.model_config import LinearRope, Llama3Rope, ModelConfig, YarnRope
from fastverify.models import kernels

Angles = tuple[torch.Tensor, torch.Tensor]


class Rope(nn.Module):
    """Turns positions into the (cos, signed sin) that `rotate` takes, both [T, 1, d]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies = inverse_frequencies(config)
        # The first half carries the minus sign of the rotation: sin(-x) = -sin(x) and cos(-x) = cos(x).
        self.signed_frequencies: torch.Tensor
        self.register_buffer("signed_frequencies", torch.cat((-frequencies, frequencies)), persistent=False)
        self.scale = attention_scale(config)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Moves with the model but stays float32: bf16 frequencies would misplace every token."""
        frequencies = self.signed_frequencies
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.signed_frequencies = frequencies.to(self.signed_frequencies.device)
        return self

    def forward(self, positions_T: torch.Tensor, dtype: torch.dtype) -> Angles:
        """Cos and signed sin of each position, in `dtype`."""
        native = kernels.kernels_for(self.signed_frequencies)
        if native is not None and dtype == torch.float32:
            return kernels.compute_angles(native, positions_T, self.signed_frequencies, self.scale)
        angles_T1d = positions_T[:, None, None] * self.signed_frequencies
        cos_T1d, sin_T1d = angles_T1d.cos(), angles_T1d.sin()
        if self.scale != 1.0:
            cos_T1d, sin_T1d = cos_T1d * self.scale, sin_T1d * self.scale
        return cos_T1d.to(dtype), sin_T1d.to(dtype)


def rotate(heads_Thd: torch.Tensor, num_rotated: int, angles: Angles) -> torch.Tensor:
    """The first `num_rotated` heads turned by their row's angles, the rest as they are. May overwrite its input."""
    cos_T1d, sin_T1d = angles
    native = kernels.kernels_for(heads_Thd)
    if native is not None:
        kernels.rotate_(native, heads_Thd, num_rotated, cos_T1d, sin_T1d)
        return heads_Thd
    x_Thd, rest_Thd = heads_Thd.split_with_sizes((num_rotated, heads_Thd.shape[1] - num_rotated), 1)
    rotated_Thd = torch.addcmul(x_Thd * cos_T1d, x_Thd.roll(x_Thd.shape[-1] // 2, -1), sin_T1d)
    return torch.cat((rotated_Thd, rest_Thd), 1)


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position of each of the d/2 pairs, float32, after the config's scaling."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if isinstance(scaling, LinearRope):
        return plain / scaling.factor
    if isinstance(scaling, Llama3Rope):
        return _llama3_frequencies(plain, scaling)
    if isinstance(scaling, YarnRope):
        return _yarn_frequencies(plain, config, scaling)
    return plain


def attention_scale(config: ModelConfig) -> float:
    """Factor on cos and sin; only YaRN has one."""
    scaling = config.rope_scaling
    if not isinstance(scaling, YarnRope):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _yarn_mscale(scaling.factor, scaling.mscale) / _yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return _yarn_mscale(scaling.factor, 1.0)


def _llama3_frequencies(plain: torch.Tensor, scaling: Llama3Rope) -> torch.Tensor:
    """`kept` is how much of the unscaled frequency stays: 1 above the high-frequency bound, 0 below the low one."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(plain / scaling.factor, plain, kept.clamp(0.0, 1.0))


def _yarn_frequencies(plain: torch.Tensor, config: ModelConfig, scaling: YarnRope) -> torch.Tensor:
    """`stretched` goes from 0 for pairs that turn often to 1 for pairs that never complete `beta_slow` turns."""
    low = _pair_with_turns(scaling.beta_fast, config, scaling)
    high = _pair_with_turns(scaling.beta_slow, config, scaling)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(len(plain), dtype=torch.float32)
    stretched = ((pairs - low) / (high - low)).clamp(0.0, 1.0)
    return torch.lerp(plain, plain / scaling.factor, stretched)


def _pair_with_turns(turns: float, config: ModelConfig, scaling: YarnRope) -> float:
    """Index (fractional) of the pair that completes `turns` turns within the original context."""
    wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
    return config.head_dim * math.log(wavelength) / (2 * math.log(config.rope_theta))


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
