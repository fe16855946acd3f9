"""One rank of the CUDA all-reduce: its inbox, its counters, its stream, and the launches of its kernels.

It does not know whose memory the inboxes are: push.py puts them on the GPU, host.py into pinned host memory. All calls
of a rank run on one stream; every rank makes the same calls in the same order.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import torch

from fastverify.comm.cuda.driver import Kernel
from fastverify.comm.cuda.kernels import DTYPE_NUMBERS, KernelSet
from fastverify.comm.cuda.launch import Launch, Protocol, Rule, choose_launch, fused_launch
from fastverify.comm.cuda.workspace import Layout
from fastverify.errors import CommTimeoutError, ConfigError, ShapeError, UnsupportedError

_ALIGNMENT = 16


class _Call(ctypes.Structure):
    """Must match Call in sources/inbox.cuh."""

    _fields_ = [
        ("inboxes", ctypes.c_uint64 * 8),
        ("own_inbox", ctypes.c_uint64),
        ("control", ctypes.c_uint64),
        ("input", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("residual", ctypes.c_uint64),
        ("weight", ctypes.c_uint64),
        ("num_bytes", ctypes.c_uint64),
        ("area_bytes", ctypes.c_uint64),
        ("spin_bound", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("protocol", ctypes.c_uint32),
        ("pause_ns", ctypes.c_uint32),
        ("row_bytes", ctypes.c_uint32),
        ("max_chunks", ctypes.c_uint32),
        ("eps", ctypes.c_float),
    ]


@dataclass(frozen=True)
class Fabric:
    """What inbox memory is good at: `rules` for sums; protocol and cluster size of the fused kernel."""

    name: str
    rules: tuple[Rule, ...]
    fused_rules: tuple[Rule, ...]


class CudaRank:
    """Launches the kernels of one rank on its stream."""

    def __init__(
        self,
        rank: int,
        inboxes: list[int],
        layout: Layout,
        kernels: KernelSet,
        fabric: Fabric,
        stream: torch.cuda.Stream,
        spin_bound_cycles: int,
        *,
        overlap: bool,
    ) -> None:
        self.rank = rank
        self.stream = stream
        self._inboxes = inboxes
        self._layout = layout
        self._kernels = kernels
        self._fabric = fabric
        self._spin_bound_cycles = spin_bound_cycles
        self._overlap = overlap and kernels.can_overlap
        # Control of inbox.cuh: three epochs, a count of blocks, and four words about a peer that did not come.
        self._control = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0], dtype=torch.int32, device=stream.device)

    def all_reduce(
        self, x: torch.Tensor, out: torch.Tensor | None = None, launch: Launch | None = None
    ) -> torch.Tensor:
        """Sum of `x` over the ranks, into `out` (default: `x` itself) and returned."""
        out = x if out is None else out
        self._check(x, out)
        launch = launch or choose_launch(self._fabric.rules, x.nbytes)
        call = self._make_call(launch.protocol, x, out)
        call.pause_ns = launch.pause_ns
        self._start(self._kernels.all_reduce(x.dtype, launch), launch, call)
        return out

    def all_reduce_residual_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
        launch: Launch | None = None,
    ) -> torch.Tensor:
        """`residual += sum over ranks of x`; returns RMSNorm(residual) * weight, into `out` (default: `x`).

        Shapes: x, residual, out [rows, hidden]; weight [hidden].
        """
        out = x if out is None else out
        self._check(x, out, residual)
        if x.dim() != 2 or weight.shape != x.shape[1:] or weight.dtype != x.dtype or weight.data_ptr() % _ALIGNMENT:
            raise ShapeError(
                f"x must be [rows, hidden] and weight [hidden] of its dtype, aligned to {_ALIGNMENT} bytes, got "
                f"{list(x.shape)} {x.dtype} and {list(weight.shape)} {weight.dtype}."
            )
        row_bytes = x.shape[1] * x.element_size()
        launch = launch or self.choose_fused_launch(x.shape[0], row_bytes)
        call = self._make_call(launch.protocol, x, out)
        call.residual, call.weight = residual.data_ptr(), weight.data_ptr()
        call.row_bytes, call.eps, call.pause_ns = row_bytes, eps, launch.pause_ns
        self._start(self._kernels.fused(x.dtype, launch), launch, call)
        return out

    def start_empty(self, launch: Launch) -> None:
        """A kernel that does nothing, the floor of any time."""
        self._start(self._kernels.empty(), launch, _Call())

    def check(self) -> None:
        """Wait for the stream. Raises CommTimeoutError where a kernel gave up; the workspace is then unusable."""
        self.stream.synchronize()
        *_, is_overdue, peer, epoch, unit = self._control.tolist()
        if is_overdue:
            raise CommTimeoutError(
                f"rank {self.rank} waited {self._spin_bound_cycles} clock cycles for rank {peer} in epoch {epoch} "
                f"(unit {unit} of its data never came over {self._fabric.name} memory). Make the same calls in the "
                f"same order on every rank, and open new ranks: these are out of step."
            )

    def set_epoch(self, epoch: int) -> None:
        """Continue from this call number in every protocol, for tests of the wrap; on every rank before any call."""
        signed = epoch - 2**32 if epoch >= 2**31 else epoch
        self._control[:3] = signed

    def choose_fused_launch(self, num_rows: int, row_bytes: int) -> Launch:
        """The launch of the fused kernel that the fabric's rules and this GPU give."""
        rules = self._fabric.fused_rules
        shape = next((rule for rule in rules if num_rows * row_bytes <= rule.max_bytes), rules[-1]).launch
        cluster = shape.cluster if self._kernels.has_clusters else 1
        launch = fused_launch(shape.protocol, num_rows, row_bytes, cluster=cluster, max_blocks=shape.blocks)
        return replace(launch, pause_ns=shape.pause_ns)

    def _make_call(self, protocol: Protocol, x: torch.Tensor, out: torch.Tensor) -> _Call:
        region = self._layout.region(protocol)
        call = _Call()
        for peer, inbox in enumerate(self._inboxes):
            call.inboxes[peer] = inbox + region.offset
        call.own_inbox = self._inboxes[self.rank] + region.offset
        call.control = self._control.data_ptr()
        call.input, call.output, call.num_bytes = x.data_ptr(), out.data_ptr(), x.nbytes
        call.area_bytes, call.max_chunks = region.area_bytes, self._layout.max_chunks
        call.spin_bound, call.rank, call.protocol = self._spin_bound_cycles, self.rank, protocol.value
        return call

    def _start(self, kernel: Kernel, launch: Launch, call: _Call) -> None:
        current = torch.cuda.current_stream(self.stream.device)
        if current != self.stream:
            raise ConfigError(f"rank {self.rank} works on stream {self.stream}, got a call on {current}.")
        kernel.launch(launch.blocks, launch.threads, self.stream.cuda_stream, call, overlap=self._overlap)

    def _check(self, x: torch.Tensor, *others: torch.Tensor) -> None:
        if x.dtype not in DTYPE_NUMBERS:
            raise UnsupportedError(f"the CUDA all-reduce sums float32, bfloat16 and float16, got {x.dtype}.")
        if not 0 < x.nbytes <= self._layout.max_bytes:
            raise ShapeError(f"a message must have 1 to {self._layout.max_bytes} bytes here, got {x.nbytes}.")
        for tensor in (x, *others):
            if not (tensor.is_cuda and tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0):
                raise ShapeError(
                    f"tensors must be contiguous on the GPU and aligned to {_ALIGNMENT} bytes, got strides "
                    f"{tensor.stride()} on {tensor.device} at offset {tensor.data_ptr() % _ALIGNMENT}."
                )
            if tensor.shape != x.shape or tensor.dtype != x.dtype:
                raise ShapeError(f"all tensors of a call must be alike, got {x.shape} {x.dtype} and {tensor.shape}.")
