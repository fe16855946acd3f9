"""A linear layer that can lay out its weight for fast products of a few rows on a CPU.

A pass of a few rows reads every weight once, mostly from beyond the caches, so the layout decides its time. Stored
input by input, a weight is read in one sweep; larger ones also get a copy in oneDNN's blocked layout for 2 and more
rows, which decides what a verify pass costs beside a plain one. Training and GPUs keep torch's layout.
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
# Measured: benchmarks/results/forward_cpu_2026-11.json, AMD EPYC 9004, torch 2.13. Below, the call costs what it saves.
_MIN_BLOCKED_ROWS = 2
_MIN_BLOCKED_BYTES = 512 * BYTES_PER_KB
# A hint for the blocked layout: rows of a usual verify pass. Any number of rows may follow.
_EXPECTED_ROWS = 4
# Arbitrary: blocked copies double the memory of the weights, which a small model can afford and a large one cannot.
_MOST_BLOCKED_BYTES = 512 * BYTES_PER_MB


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
        self._blocked: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of `x` [T, inputs], projected."""
        if self._blocked is None or x.shape[0] < _MIN_BLOCKED_ROWS:
            return F.linear(x, self.weight, self.bias)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._blocked, self.bias, "none", [], "")
        return product

    def store_by_input(self) -> None:
        """Same weight, transposed in memory. A weight tied to an embedding becomes a copy: rows of that are read."""
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t(), requires_grad=False)

    def add_blocked_copy(self) -> None:
        """Keep a copy of the weight, as it is now, in oneDNN's layout."""
        self._blocked = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().contiguous(), _EXPECTED_ROWS)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """A move or conversion of the model leaves the blocked copy behind."""
        self._blocked = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles go without the blocked weight, which torch cannot copy."""
        return self.__dict__ | {"_blocked": None}

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
    """Lay out every linear layer for CPU inference, if that is where the model is; says whether it did.

    After loading only: blocked copies have no gradient and do not follow later changes of a weight.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    if any(linear.weight.device.type != "cpu" or linear.weight.dtype != torch.float32 for linear in linears):
        return False
    num_bytes = sum(linear.weight.nbytes for linear in linears)
    can_block = bool(torch._C._has_mkldnn) and num_bytes <= _MOST_BLOCKED_BYTES
    _LOG.info("linear layers, %s, stored by input; blocked copies: %s", format_bytes(num_bytes), can_block)
    for linear in linears:
        if can_block and linear.weight.nbytes >= _MIN_BLOCKED_BYTES:
            linear.add_blocked_copy()
        linear.store_by_input()
    return True
