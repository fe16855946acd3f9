"""The reference RMSNorm: float32 inside, rounded to the input dtype, then multiplied by the weight, as Llama does.

Models import it, and every fused kernel is checked against it.
Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
"""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in the dtype of `x`. Differentiable."""
    x_float32 = x.float()
    scale = torch.rsqrt(x_float32.pow(2).mean(-1, keepdim=True) + eps)
    return (x_float32 * scale).to(x.dtype) * weight.to(x.dtype)


def add_residual_rms_norm_(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`residual += x`; returns the RMSNorm of the sum. What a backend without a fused kernel does after its sum."""
    residual.add_(x)
    return rms_norm(residual, weight, eps)


def add_residual_quick_norm_(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `add_residual_rms_norm_` in two of torch's kernels, which on a GPU is what counts; it rounds once less."""
    residual.add_(x)
    return torch.nn.functional.rms_norm(residual, [residual.shape[-1]], weight.to(residual.dtype), eps)
