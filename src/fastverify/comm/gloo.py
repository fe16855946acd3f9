"""The gloo backend: what CPU servers use when nothing better is there, and the baseline of every comparison.

Two ranks use gloo's own all-reduce in the tensor's dtype: a sum of two numbers has one order and one rounding, so it
meets the contract. From three ranks on, gloo's ring adds each part of the tensor in another order (and rounds bf16 at
every hop), so the contract is met by an all-gather and a sum in rank order instead.
Traffic is TCP over loopback; every call copies through sockets and wakes gloo's own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, ReduceOp, Work

from fastverify.comm.backend import Support
from fastverify.comm.dtypes import find_sum_support
from fastverify.comm.processes import PeerProcesses
from fastverify.comm.rmsnorm import add_residual_rms_norm_
from fastverify.errors import CommTimeoutError, UnsupportedError

if TYPE_CHECKING:
    from fastverify.comm.group import Group


class GlooBackend:
    """Collectives over loopback TCP."""

    name = "gloo"

    def __init__(self, group: Group) -> None:
        if group.torch_group is None:
            raise UnsupportedError("gloo needs 2 or more ranks, got 1. Use single_rank_communicator().")
        self._torch_group = group.torch_group
        self._rank = group.rank
        self._world_size = group.world_size
        self._timeout_s = group.timeout_s
        self._peers = PeerProcesses(group.process_ids)

    def can_run(self, num_elements: int, dtype: torch.dtype) -> Support:
        """Any size above zero of a 16-bit or 32-bit float."""
        return find_sum_support(self.name, num_elements, dtype)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks into `x`; see the contract."""
        support = self.can_run(x.numel(), x.dtype)
        if not support.ok:
            raise UnsupportedError(f"{support.reason}.")
        if self._world_size == 2:
            self._wait(self._torch_group.allreduce([x], _sum_options()))
            return x
        # `gathered` is added rank by rank: torch's own sum over a dimension promises no order.
        gathered = self.all_gather(x)
        total = gathered[0].float()
        for part in gathered[1:]:
            total += part
        return x.copy_(total)

    def all_reduce_residual_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """No fused kernel: an all-reduce, an addition and the reference norm."""
        return add_residual_rms_norm_(self.all_reduce(x), residual, weight, eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` in rank order; any dtype."""
        gathered = x.new_empty((self._world_size, *x.shape))
        self._wait(self._torch_group._allgather_base(gathered.view(-1), x.reshape(-1), AllgatherOptions()))
        return gathered

    def close(self) -> None:
        """Forget the peers; the sockets belong to the group."""
        self._peers.close()

    def _wait(self, work: Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise CommTimeoutError(
                f"rank {self._rank} waited for a gloo collective of {self._world_size} ranks with a limit of "
                f"{self._timeout_s:g} s: {self._peers.explain_failure()}. gloo said: {str(error).splitlines()[0]}"
            ) from error


def _sum_options() -> AllreduceOptions:
    options = AllreduceOptions()
    options.reduceOp = ReduceOp(ReduceOp.SUM)
    return options
