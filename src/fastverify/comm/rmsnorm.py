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


def add_residual_quick_norm_(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """As `add_residual_rms_norm_`, with the same roundings, in three of torch's kernels: on a GPU that is what counts.

    The norm is written into `out`, which may be `x`, where that is given. Not differentiable.
    """
    residual.add_(x)
    normed = torch.nn.functional.rms_norm(residual, [residual.shape[-1]], None, eps)
    return torch.mul(normed, weight.to(residual.dtype), out=normed if out is None else out)


def add_residual_rounded_once_norm_(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """In two of torch's kernels, without rounding before the weight: the quickest that torch has, for rivals' times."""
    residual.add_(x)
    return torch.nn.functional.rms_norm(residual, [residual.shape[-1]], weight.to(residual.dtype), eps)
