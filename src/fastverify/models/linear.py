"""A linear layer whose weight can be packed for our CPU kernels, and its gated form.

Packed, a weight that is exact in bfloat16 is stored so and multiplied in float32: a pass of a few rows is bound by
reading weights, and this halves them without changing the model. Training, GPUs and other dtypes keep torch's layout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional as F

from fastverify.errors import UnsupportedError
from fastverify.models import kernels
from fastverify.models.sharding import Slots, Span, part
from fastverify.units import format_bytes

if TYPE_CHECKING:
    from fastverify.models import _kernels

_LOG = logging.getLogger(__name__)


class Linear(nn.Module):
    """`x @ weight.T + bias`. Parameters start at zero: a checkpoint or an initialiser fills them.

    Blocks call `forward` directly: nothing hooks into them, and `__call__` costs as much as a one-row product.
    """

    is_gated: ClassVar[bool] = False

    def __init__(
        self, num_inputs: int, num_outputs: int, bias: bool = False, weight: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_inputs)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None
        self._packed: _kernels.PackedLinear | None = None
        self._num_outputs = num_outputs // 2 if self.is_gated else num_outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of `x` [T, inputs], projected."""
        if self._packed is not None:
            return kernels.packed_linear(self._packed, x, self._num_outputs)
        return F.linear(x, self.weight, self.bias)

    def pack(self) -> int:
        """Pack the weight for inference, if this machine has kernels for it; bytes packed, else 0.

        The weight keeps its shape and gives up its memory, unless an embedding shares it.
        """
        self._packed = kernels.pack_linear(self.weight, self.bias, self.is_gated)
        if self._packed is None:
            return 0
        self.weight = nn.Parameter(self.weight.detach().to("meta"), requires_grad=False)
        return self._packed.num_bytes

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Moves and conversions are for the time before packing."""
        if self._packed is not None:
            raise UnsupportedError("a model packed for inference stays where it is. Move or convert it before packing.")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def row_slots(self, name: str, span: Span, full_size: int, offset: int) -> Slots:
        """Places of a column-parallel projection `name` whose part starts at row `offset` here."""
        yield part(f"{name}.weight", self.weight, 0, span, full_size, offset)
        if self.bias is not None:
            yield part(f"{name}.bias", self.bias, 0, span, full_size, offset)

    def column_slots(self, name: str, span: Span, full_size: int, rank: int) -> Slots:
        """Places of a row-parallel projection. Only rank 0 fills its bias, so that the sum holds it once."""
        yield part(f"{name}.weight", self.weight, 1, span, full_size)
        if self.bias is not None:
            num_outputs = self.bias.shape[0]
            yield part(f"{name}.bias", self.bias, 0, Span(0, 0 if rank else num_outputs), num_outputs)


class GatedLinear(Linear):
    """`silu(gate) * up` of a merged projection, whose first half of outputs are the gates."""

    is_gated = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of `x` [T, inputs], projected and gated: [T, outputs / 2]."""
        projected = super().forward(x)
        if self._packed is not None:
            return projected
        gate, up = projected.chunk(2, -1)
        return F.silu(gate) * up


def pack_linears(model: nn.Module) -> None:
    """Pack every linear layer of a loaded model for inference, where there are kernels for it."""
    num_bytes = sum(module.pack() for module in model.modules() if isinstance(module, Linear))
    _LOG.info("linear layers: %s packed for our kernels", format_bytes(num_bytes) if num_bytes else "none")
