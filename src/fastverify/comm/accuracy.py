"""How far a correct answer may be from the exact one: derived error bounds, not tolerances.

Used by the benchmark, by start-up probes and by the contract tests. All arithmetic here is in float64.
Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., sections 2.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Relative error of rounding once to nearest, and the spacing of the smallest (denormal) numbers.
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST_STEP = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
_FLOAT32 = UNIT_ROUNDOFF[torch.float32]
# First-order bounds drop products of roundoffs; this covers them for fewer than 1000 operations.
_SECOND_ORDER = 1.01


def add_exactly(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum in float64, whose own error is far below every bound here."""
    return torch.stack([term.double() for term in terms]).sum(0)


def sum_error_bound(terms: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Largest error of adding in float32, in any order, and rounding once to `dtype`."""
    additions = (len(terms) - 1) * _FLOAT32 * add_exactly([term.abs() for term in terms])
    rounding = 0.0 if dtype == torch.float32 else UNIT_ROUNDOFF[dtype] * (add_exactly(terms).abs() + additions)
    return (additions + rounding) * _SECOND_ORDER + SMALLEST_STEP[dtype]


def residual_error_bound(inputs: Sequence[torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
    """Largest error of `residual` plus the sum of `inputs`, where the sum may be rounded before it is added."""
    dtype = residual.dtype
    early_rounding = UNIT_ROUNDOFF[dtype] * add_exactly(inputs).abs() * _SECOND_ORDER
    return sum_error_bound([residual, *inputs], dtype) + early_rounding


def norm_exactly(residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float64."""
    wide = residual.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def norm_error_bound(residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Largest error of a float32 RMSNorm that rounds to the dtype before and after the weight.

    The sum of squares has a relative error of at most hidden_size roundoffs, which the root halves; six more float32
    operations follow.
    """
    hidden_size, dtype = residual.shape[-1], residual.dtype
    relative = (hidden_size / 2 + 6) * _FLOAT32 + 2 * UNIT_ROUNDOFF[dtype]
    absolute = SMALLEST_STEP[dtype] * (1 + weight.double().abs())
    return norm_exactly(residual, weight, eps).abs() * relative * _SECOND_ORDER + absolute


def is_within(x: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> bool:
    """Whether every element is at most `bound` from `exact`. NaN is not."""
    return bool(((x.double() - exact).abs() <= bound).all())


def is_sum(x: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether `x` is the sum of every rank's input, rounded once."""
    return is_within(x, add_exactly(inputs), sum_error_bound(inputs, x.dtype))


def is_new_residual(residual: torch.Tensor, before: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether `residual` is what it was `before` plus the sum."""
    return is_within(residual, add_exactly([before, *inputs]), residual_error_bound(inputs, before))


def is_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> bool:
    """Whether `x` is the norm of the residual as it was rounded."""
    return is_within(x, norm_exactly(residual, weight, eps), norm_error_bound(residual, weight, eps))
