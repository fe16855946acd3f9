"""Muon for matrices, AdamW for everything else, one learning rate for both.

Muon replaces a matrix's momentum by the nearest orthogonal matrix (five Newton-Schulz steps) and scales it so that its
entries have the size of an AdamW update. Matrices of one shape are handled in one batch.
Source: Jordan et al., "Muon", 2024; update scale and weight decay as in arXiv:2502.16982.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

# Source: the quintic of Jordan et al., "Muon", 2024, tuned there for the steepest rise at zero.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_NUM_STEPS = 5
# Source: arXiv:2502.16982, the root mean square of AdamW's updates.
_UPDATE_SIZE = 0.2


class Muon(Optimizer):
    """Momentum with Nesterov, orthogonalised per matrix; decoupled weight decay."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        weights: list[torch.Tensor] = list(parameters)
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, buffers, momentum)
        updates = orthogonalize(torch.stack(directions))
        scale = _UPDATE_SIZE * max(parameters[0].shape) ** 0.5
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        torch._foreach_add_(weights, list(updates.float().unbind()), alpha=-lr * scale)


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Roughly U V^T of each matrix U S V^T, shape [count, rows, columns]; singular values land in about 0.7..1.2."""
    a, b, c = _QUINTIC
    x: torch.Tensor = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_NUM_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def build_optimizers(
    model: nn.Module, lr: float, weight_decay: float, tables: Iterable[nn.Parameter], use_muon: bool = True
) -> list[Optimizer]:
    """Optimizers over the trainable parameters. `tables` are matrices that AdamW takes: embedding and output head."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    table_ids = {id(table) for table in tables}
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in table_ids]
    vectors = [p for p in trainable if p.ndim != 2]
    rest = [p for p in trainable if id(p) in table_ids]
    adamw_matrices = [] if use_muon else matrices
    groups = [
        {"params": rest + adamw_matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=lr, betas=(0.9, 0.95), fused=trainable[0].is_cuda
    )
    return [Muon(matrices, lr, weight_decay=weight_decay), adamw] if use_muon and matrices else [adamw]
