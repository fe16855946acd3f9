"""The RMSNorm of places that no all-reduce comes before: heads of Qwen3, and the inputs of an EAGLE-3 head.

The collectives' kernel where it may run, else torch's own function: the same formula as comm/rmsnorm.py in fewer
operations. Source: arXiv:1910.07467.
"""

import torch
from torch.nn import functional as F

from fastverify.models import kernels


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension. Differentiable."""
    native = kernels.kernels_for(x)
    if native is not None:
        return kernels.rms_norm(native, x, weight, eps)
    return F.rms_norm(x, weight.shape, weight, eps)
