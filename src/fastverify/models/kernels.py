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


def compute_angles(
    kernels: _kernels.Kernels, positions_T: torch.Tensor, frequencies: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cos and sin [T, 1, frequencies] of position * frequency, times `scale`."""
    num_rows, num_frequencies = positions_T.shape[0], frequencies.shape[0]
    cos, sin = torch.empty(2, num_rows, 1, num_frequencies).unbind(0)
    kernels.compute_angles(
        positions_T.data_ptr(),
        num_rows,
        frequencies.data_ptr(),
        num_frequencies,
        scale,
        cos.data_ptr(),
        sin.data_ptr(),
    )
    return cos, sin


def rotate_(
    kernels: _kernels.Kernels, heads: torch.Tensor, num_rotated: int, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """Turn the first `num_rotated` of the heads [T, heads, d] in place; `heads` is contiguous."""
    num_rows, _, head_dim = heads.shape
    kernels.rotate(heads.data_ptr(), heads.stride(0), cos.data_ptr(), sin.data_ptr(), num_rows, num_rotated, head_dim)


def look_up(kernels: _kernels.Kernels, table: torch.Tensor, first_id: int, ids_T: torch.Tensor) -> torch.Tensor:
    """Rows [T, D] of a table that begins at `first_id`, zeros for ids that it does not hold."""
    num_ids, row_size = table.shape
    num_rows = ids_T.shape[0]
    out = torch.empty(num_rows, row_size)
    kernels.look_up(table.data_ptr(), first_id, num_ids, row_size, ids_T.data_ptr(), num_rows, out.data_ptr())
    return out


def arg_max(kernels: _kernels.Kernels, logits: torch.Tensor, first_id: int) -> torch.Tensor:
    """[T, 2]: the largest value of each row, and its column + `first_id`, the lowest of equals, as float32."""
    num_rows, num_columns = logits.shape
    best_T2 = torch.empty(num_rows, 2)
    kernels.arg_max(logits.data_ptr(), num_rows, num_columns, num_columns, first_id, best_T2.data_ptr())
    return best_T2


def choose_best(kernels: _kernels.Kernels, best_RT2: torch.Tensor) -> torch.Tensor:
    """Id [T] of the largest value of each row over the ranks, the first rank's of equals."""
    num_ranks, num_rows, _ = best_RT2.shape
    ids_T = torch.empty(num_rows, dtype=torch.int64)
    kernels.choose_best(best_RT2.data_ptr(), num_ranks, num_rows, ids_T.data_ptr())
    return ids_T
