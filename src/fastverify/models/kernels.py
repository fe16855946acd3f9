"""Our own CPU kernels of a forward pass: who may use them, and their calls with tensors instead of addresses.

They run without gradients on float32 CPU tensors, where this processor has vector code for them; everything else is
torch's. A row's result does not depend on the other rows of the call: csrc/cpu/forward_kernels.hpp says why. At a few
rows torch's own dispatch costs more than the arithmetic, hence few checks here and none in C++.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from fastverify import env

if TYPE_CHECKING:
    from fastverify.models import _kernels


@lru_cache(maxsize=1)
def find_kernels() -> _kernels.Kernels | None:
    """The kernels of this processor, or None where there is no vector code or FASTVERIFY_SIMD asks for none."""
    try:
        from fastverify.models import _kernels
    except ImportError:
        return None
    wanted = env.read("FASTVERIFY_SIMD")
    runs = wanted in _kernels.list_simd() or (wanted == "auto" and _kernels.list_simd())
    return _kernels.Kernels(wanted) if runs else None


def describe_kernels(dtype: torch.dtype) -> str:
    """What computes a pass of a model of this dtype on a CPU: "native-avx512" and alike, or "torch"."""
    kernels = find_kernels()
    return f"native-{kernels.simd}" if kernels is not None and dtype == torch.float32 else "torch"


def kernels_for(x: torch.Tensor) -> _kernels.Kernels | None:
    """The kernels if they may compute with `x`: no gradient is wanted and no compiler is tracing."""
    if x.dtype is not torch.float32 or torch.is_grad_enabled() or torch.compiler.is_compiling() or not x.is_cpu:
        return None
    return find_kernels()


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None, is_gated: bool) -> _kernels.PackedLinear | None:
    """A packed copy of a float32 weight [outputs, inputs] on a CPU, or None where no kernel would read it."""
    kernels = find_kernels()
    if kernels is None or weight.dtype != torch.float32 or not weight.is_cpu:
        return None
    from fastverify.models import _kernels

    num_outputs, num_inputs = weight.shape
    weight, bias = weight.detach().contiguous(), None if bias is None else bias.detach().contiguous()
    bias_address = 0 if bias is None else bias.data_ptr()
    return _kernels.PackedLinear(kernels.simd, weight.data_ptr(), bias_address, num_outputs, num_inputs, is_gated)


def packed_linear(packed: _kernels.PackedLinear, x: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """Rows of `x` times a packed weight."""
    x = x.contiguous()
    num_rows = x.shape[0]
    out = torch.empty(num_rows, num_outputs)
    packed.run(x.data_ptr(), num_rows, out.data_ptr())
    return out


def rms_norm(kernels: _kernels.Kernels, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The collectives' norm of every row of `x`."""
    x, size = x.contiguous(), weight.shape[0]
    out = torch.empty_like(x)
    kernels.rms_norm(x.data_ptr(), weight.data_ptr(), eps, x.numel() // size, size, out.data_ptr())
    return out


def rotate(kernels: _kernels.Kernels, x_Thd: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Every head of `x_Thd` turned by its row's angles; the heads of a row are contiguous."""
    num_rows, num_heads, head_dim = x_Thd.shape
    out = torch.empty(num_rows, num_heads, head_dim)
    kernels.rotate(
        x_Thd.data_ptr(),
        x_Thd.stride(0),
        cos.data_ptr(),
        signed_sin.data_ptr(),
        num_rows,
        num_heads,
        head_dim,
        out.data_ptr(),
    )
    return out
