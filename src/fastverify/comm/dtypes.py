"""The dtypes that our backends sum, by the names that commands take, and the refusal of everything else."""

from __future__ import annotations

import torch

from fastverify.comm.backend import SUPPORTED, Support

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_sum_support(name: str, num_elements: int, dtype: torch.dtype) -> Support:
    """Whether a backend of this name, which sums any size above zero of these dtypes, takes such a message."""
    if dtype not in DTYPES.values():
        return Support(ok=False, reason=f"{name} sums float32, bfloat16 and float16, got {dtype}")
    if num_elements < 1:
        return Support(ok=False, reason=f"an all-reduce needs 1 or more elements, got {num_elements}")
    return SUPPORTED
