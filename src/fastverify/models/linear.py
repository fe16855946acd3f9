"""A linear layer that may keep a second copy of its weight in the layout that oneDNN multiplies fastest.

For 2 and more rows of float32 on a CPU the packed product of a larger weight takes half to three quarters of the time
of torch's default one, which decides what a verify pass costs beside a plain one. A single row is faster unpacked, and
so are small weights, where oneDNN's own call costs more than it saves. Training never packs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from fastverify.models.sharding import Slots, Span, part
from fastverify.units import BYTES_PER_KB, BYTES_PER_MB, format_bytes

_LOG = logging.getLogger(__name__)
# Measured: benchmarks/results/forward_cpu_2026-11.json and forward_cpu_unpacked_2026-11.json, AMD EPYC 9004, 2026-11.
_MIN_PACKED_ROWS = 2
_MIN_PACKED_BYTES = 512 * BYTES_PER_KB
# A hint for the packed layout: rows of a usual verify pass. Any number of rows may follow.
_EXPECTED_ROWS = 4
# Arbitrary: packing doubles the memory of the weights, which a small model can afford and a large one cannot.
_MOST_PACKED_BYTES = 512 * BYTES_PER_MB


class Linear(nn.Module):
    """`x @ weight.T + bias`. Parameters start at zero: a checkpoint or an initialiser fills them.

    Blocks call `forward` directly: nothing hooks into them, and `__call__` costs as much as a one-row product.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, bias: bool = False, weight: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_inputs)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None
        self._packed: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of `x` [T, inputs], projected."""
        if self._packed is None or x.shape[0] < _MIN_PACKED_ROWS:
            return F.linear(x, self.weight, self.bias)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return product

    def pack(self) -> None:
        """Keep a packed copy of the weight as it is now."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _EXPECTED_ROWS)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """A move or conversion of the model leaves the packed copy behind."""
        self._packed = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles go without the packed weight, which torch cannot copy."""
        return self.__dict__ | {"_packed": None}

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


def pack_linears(model: nn.Module) -> bool:
    """Pack the larger linear layers where that is possible and affordable; says whether it did.

    For inference only, after loading: packed products have no gradient and do not follow later changes of a weight.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    num_bytes = sum(linear.weight.nbytes for linear in linears)
    on_cpu = all(linear.weight.device.type == "cpu" and linear.weight.dtype == torch.float32 for linear in linears)
    if not on_cpu or not torch._C._has_mkldnn or num_bytes > _MOST_PACKED_BYTES:
        _LOG.info("linear layers stay unpacked: %s, float32 on a CPU: %s", format_bytes(num_bytes), on_cpu)
        return False
    for linear in linears:
        if linear.weight.nbytes >= _MIN_PACKED_BYTES:
            linear.pack()
    return True
