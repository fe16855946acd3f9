import pytest
import torch

from fastverify.comm.accuracy import add_exactly, is_within, norm_error_bound, norm_exactly, sum_error_bound
from fastverify.comm.rmsnorm import rms_norm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_float32_sum_rounded_once_is_within_and_one_step_more_is_not(dtype: torch.dtype) -> None:
    terms = [torch.tensor([1.0]).to(dtype), torch.tensor([2.0**-3]).to(dtype)]
    exact, bound = add_exactly(terms), sum_error_bound(terms, dtype)
    x = (terms[0].float() + terms[1].float()).to(dtype)
    assert is_within(x, exact, bound)
    next_float = x.view(torch.int32 if dtype == torch.float32 else torch.int16) + (2 if dtype == torch.float32 else 1)
    assert not is_within(next_float.view(dtype) + 0, exact, bound)
    assert not is_within(torch.tensor([torch.nan]).to(dtype), exact, bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_norm_is_within_and_a_norm_without_eps_or_weight_is_not(dtype: torch.dtype) -> None:
    residual, weight = torch.randn(3, 320).to(dtype), torch.rand(320).to(dtype)
    exact, bound = norm_exactly(residual, weight, 1e-1), norm_error_bound(residual, weight, 1e-1)
    assert is_within(rms_norm(residual, weight, 1e-1), exact, bound)
    assert not is_within(rms_norm(residual, weight, 0.0), exact, bound)
    assert not is_within(rms_norm(residual, torch.ones_like(weight), 1e-1), exact, bound)
