"""What the contract says of roundings: the new residual, then the norm of the rounded residual, then the product."""

import pytest
import torch

from fastverify.comm.accuracy import norm_exactly
from fastverify.comm.rmsnorm import (
    add_residual_quick_norm_,
    add_residual_rms_norm_,
    add_residual_rounded_once_norm_,
)

EPS = 1e-6


def make(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, residual = (torch.randn((8, 512), generator=generator).to(dtype) for _ in range(2))
    return x, residual, torch.randn(512, generator=generator).to(dtype)


def expected_where_sure(residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm rounded before and after the weight, and where float32 cannot have rounded the other way."""
    exact = norm_exactly(residual, torch.ones_like(weight), EPS)
    rounded = exact.to(residual.dtype)
    is_sure = ((exact * (1 + 1e-5)).to(residual.dtype) == rounded) & (
        (exact * (1 - 1e-5)).to(residual.dtype) == rounded
    )
    return rounded * weight, is_sure


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [add_residual_rms_norm_, add_residual_quick_norm_])
def test_the_contract_rounds_before_the_weight(norm, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    x, residual, weight = make(dtype)
    summed = (x.float() + residual.float()).to(dtype)
    normed = norm(x, residual, weight, EPS)
    assert torch.equal(residual, summed), "the residual is rounded once"
    expected, is_sure = expected_where_sure(residual, weight)
    assert is_sure.float().mean() > 0.9
    assert torch.equal(normed[is_sure], expected[is_sure])
    once = add_residual_rounded_once_norm_(torch.zeros_like(x), residual, weight, EPS)
    assert not torch.equal(once[is_sure], expected[is_sure]), "this test can tell the two apart"


def test_the_norm_goes_where_it_is_asked_to() -> None:
    x, residual, weight = make(torch.bfloat16)
    expected = add_residual_quick_norm_(x, residual.clone(), weight, EPS)
    total = x.clone()
    assert add_residual_quick_norm_(total, residual, weight, EPS, total) is total
    assert torch.equal(total, expected)
