"""One rank of the CUDA collectives: its memory, its counters, its stream, and the launches of its kernels.

It does not know whose memory the inboxes are: push.py puts them on the GPU, host.py into pinned host memory. All calls
of a rank run on one stream; every rank makes the same calls in the same order. A message that is larger than its
algorithm's memory goes in pieces, each a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fastverify.comm.cuda.call import Call, Outcome, RankStatus, StatusWords, make_call
from fastverify.comm.cuda.driver import Kernel
from fastverify.comm.cuda.kernels import DTYPE_NUMBERS, KernelSet
from fastverify.comm.cuda.launch import Launch, Rule, choose_launch, find_fused_rule, fused_launch, trim
from fastverify.comm.cuda.stream_guard import StreamGuard
from fastverify.comm.cuda.workspace import Layout
from fastverify.errors import CommTimeoutError, ConfigError, ShapeError, UnsupportedError

_ALIGNMENT = 16


@dataclass(frozen=True)
class Fabric:
    """One kind of memory and the launches that suit it: sums, the fused kernel (one row per cluster), gathers."""

    name: str
    rules: tuple[Rule, ...]
    fused_rules: tuple[Rule, ...]
    gather_rules: tuple[Rule, ...]


class CudaRank:
    """Launches the kernels of one rank, on `stream` or, where that is None, on torch's current stream."""

    def __init__(
        self,
        rank: int,
        inboxes: list[int],
        layout: Layout,
        kernels: KernelSet,
        fabric: Fabric,
        stream: torch.cuda.Stream | None = None,
        spin_bound_cycles: int = 0,
        *,
        overlap: bool = True,
    ) -> None:
        self.rank = rank
        # Control of call.cuh: all zero but the epoch.
        self._control = torch.tensor([1, 0, 0, 0, 0], dtype=torch.int32, device=kernels.device)
        self.device = self._control.device  # with its index, as every tensor says it
        self._stream = stream
        self._guard = StreamGuard(rank)
        self._inboxes = inboxes
        self._layout = layout
        self._kernels = kernels
        self._fabric = fabric
        self._spin_bound_cycles = spin_bound_cycles
        self._overlap = overlap and kernels.can_overlap
        # Eager calls are as fast as their Python: what depends on the size alone is worked out once.
        self._templates: dict[tuple[Launch, int, int], Call] = {}
        self._fused_shapes: dict[tuple[int, int], Launch] = {}
        self._status = StatusWords()

    @property
    def stream(self) -> torch.cuda.Stream:
        """Where its calls run."""
        return self._stream or torch.cuda.current_stream(self.device)

    def all_reduce(
        self, x: torch.Tensor, out: torch.Tensor | None = None, launch: Launch | None = None
    ) -> torch.Tensor:
        """Sum of `x` over the ranks, into `out` (default: `x` itself) and returned."""
        out = x if out is None else out
        self._check(x, out)
        launch = launch or self.choose_launch(x.nbytes)
        outbox = self._layout.uses_outbox(launch.protocol)
        self._check_algorithm(launch)
        kernel = self._kernels.all_reduce(x.dtype, launch, outbox=outbox)
        for start, num_bytes in self._layout.pieces(launch, x.nbytes):
            call = self._make_call(launch, num_bytes, x.element_size())
            call.input, call.output = x.data_ptr() + start, out.data_ptr() + start
            self._start(kernel, trim(launch, num_bytes, self._layout.world_size), call)
        return out

    def all_reduce_residual_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
        launch: Launch | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`residual += sum over ranks of x (+ bias)`; returns RMSNorm(residual) * weight, into `out` (default: `x`).

        Shapes: x, residual, out [rows, hidden]; weight, bias [hidden]. A `launch` gets the threads that a row needs.
        """
        out = x if out is None else out
        self._check(x, out, residual)

        def set_output(call: Call, start: int) -> None:
            call.output = out.data_ptr() + start

        self._start_fused(x, residual, weight, eps, launch, bias, set_output)
        return out

    def all_reduce_residual_rmsnorm_fp8(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        launch: Launch | None = None,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same with the norm in 8 bits: float8_e4m3fn [rows, hidden], and float32 scales [rows].

        norm = quantised * scale, where scale = largest magnitude of the norm's row / 448.
        Raises: UnsupportedError before SM89.
        """
        if not self._kernels.has_fp8:
            raise UnsupportedError(f"8-bit floats need SM89 or later, got {self._kernels.architecture}.")
        self._check(x, residual)
        quantised = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        scales = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)

        def set_output(call: Call, start: int) -> None:
            call.quantised = quantised.data_ptr() + start // x.element_size()
            call.scale_out = scales.data_ptr() + start // x[0].nbytes * scales.element_size()

        self._start_fused(x, residual, weight, eps, launch, bias, set_output, fp8=True)
        return quantised, scales

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, launch: Launch | None = None) -> torch.Tensor:
        """Every rank's `x`, in rank order, into `out` [world_size, *x.shape], which is returned. Any dtype."""
        if out.shape != (self._layout.world_size, *x.shape) or out.dtype != x.dtype:
            raise ShapeError(
                f"out must be [{self._layout.world_size}, *x.shape] of x's dtype, got {list(out.shape)} {out.dtype} "
                f"for {list(x.shape)} {x.dtype}."
            )
        self._check_memory(x, out)
        launch = launch or choose_launch(self._fabric.gather_rules, x.nbytes, self._layout.world_size)
        kernel = self._kernels.all_gather(launch, outbox=self._layout.uses_outbox(launch.protocol))
        for start, num_bytes in self._layout.pieces(launch, x.nbytes):
            call = self._make_call(launch, num_bytes, x.element_size())
            call.input, call.output, call.output_stride = x.data_ptr() + start, out.data_ptr() + start, x.nbytes
            self._start(kernel, trim(launch, num_bytes, self._layout.world_size), call)
        return out

    def start_empty(self, launch: Launch) -> None:
        """A kernel that does nothing, the floor of any time."""
        self._start(self._kernels.empty(), launch, Call())

    def set_rules(
        self, rules: tuple[Rule, ...], fused_rules: tuple[Rule, ...], gather_rules: tuple[Rule, ...] = ()
    ) -> None:
        """Use what was measured here from now on; every rank must get the same. An empty table leaves the old one."""
        self._fabric = replace(
            self._fabric,
            rules=rules or self._fabric.rules,
            fused_rules=fused_rules or self._fabric.fused_rules,
            gather_rules=gather_rules or self._fabric.gather_rules,
        )
        self._fused_shapes.clear()

    def choose_launch(self, num_bytes: int) -> Launch:
        """The launch of a sum that the rules give."""
        return choose_launch(self._fabric.rules, num_bytes, self._layout.world_size)

    def choose_fused_launch(self, num_rows: int, row_bytes: int) -> Launch:
        """The launch of the fused kernel that the rules and this GPU give."""
        return self._fit_fused(self._fused_shape(num_rows, row_bytes), num_rows, row_bytes)

    def status(self) -> RankStatus | None:
        """What a kernel said when it gave up; a plain read of host memory, None while all is well."""
        return self._status.read()

    def abort(self) -> None:
        """Make kernels that wait leave, now and later; the rank is then unusable."""
        self._status.abort()

    def check(self) -> None:
        """Wait for the stream. Raises CommTimeoutError where a kernel gave up; the workspace is then unusable."""
        self.stream.synchronize()
        status = self.status()
        if status is None:
            return
        waited = "was told to leave while it waited"
        if status.kind is Outcome.LATE:
            waited = f"waited {self._spin_bound_cycles} clock cycles"
        raise CommTimeoutError(
            f"rank {self.rank} {waited} for rank {status.peer} in epoch {status.epoch} (line {status.unit} of its data "
            f"never came over {self._fabric.name} memory). Make the same calls in the same order on every rank, and "
            f"open new ranks: these are out of step."
        )

    def set_epoch(self, epoch: int) -> None:
        """Continue from this call number, for tests of the wrap; on every rank before any call."""
        self._control[0] = epoch - 2**32 if epoch >= 2**31 else epoch

    def _start_fused(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        launch: Launch | None,
        bias: torch.Tensor | None,
        set_output: Callable[[Call, int], None],
        *,
        fp8: bool = False,
    ) -> None:
        """`set_output(call, start)`: where the norm of the rows from byte `start` of x goes."""
        self._check_vectors(x, weight, *(() if bias is None else (bias,)))
        row_bytes = x.shape[1] * x.element_size()
        shape = launch or self._fused_shape(x.shape[0], row_bytes)
        launch = self._fit_fused(shape, x.shape[0], row_bytes)
        kernel = self._kernels.fused(x.dtype, launch, outbox=self._layout.uses_outbox(launch.protocol), fp8=fp8)
        for start, num_bytes in self._layout.pieces(launch, x.nbytes, row_bytes):
            call = self._make_call(launch, num_bytes, x.element_size())
            call.input, call.residual = x.data_ptr() + start, residual.data_ptr() + start
            call.weight, call.bias = weight.data_ptr(), 0 if bias is None else bias.data_ptr()
            call.row_bytes, call.eps = row_bytes, eps
            set_output(call, start)
            self._start(kernel, self._fit_fused(shape, num_bytes // row_bytes, row_bytes), call)

    def _fused_shape(self, num_rows: int, row_bytes: int) -> Launch:
        key = (num_rows, row_bytes)
        if key not in self._fused_shapes:
            self._fused_shapes[key] = find_fused_rule(self._fabric.fused_rules, num_rows, row_bytes)
        return self._fused_shapes[key]

    def _fit_fused(self, shape: Launch, num_rows: int, row_bytes: int) -> Launch:
        cluster = shape.cluster if self._kernels.has_clusters else 1
        launch = fused_launch(
            *(shape.protocol, num_rows, row_bytes), cluster=cluster, max_blocks=shape.blocks, min_units=shape.units
        )
        return replace(launch, pause_ns=shape.pause_ns, has_scouts=shape.has_scouts)

    def _make_call(self, launch: Launch, num_bytes: int, item_bytes: int) -> Call:
        key = (launch, num_bytes, item_bytes)
        if key not in self._templates:
            call = make_call(self._layout, self._inboxes, self.rank, launch, num_bytes, item_bytes)
            call.control, call.status = self._control.data_ptr(), self._status.address
            call.spin_bound = self._spin_bound_cycles
            self._templates[key] = call
        return Call.from_buffer_copy(self._templates[key])

    def _start(self, kernel: Kernel, launch: Launch, call: Call) -> None:
        current = torch.cuda.current_stream(self.device)
        if self._stream is None:
            self._guard.admit(current.cuda_stream)
        elif current != self._stream:
            raise ConfigError(f"rank {self.rank} works on stream {self._stream}, got a call on {current}.")
        kernel.launch(launch.blocks, launch.threads, current.cuda_stream, call, overlap=self._overlap)

    def _check_algorithm(self, launch: Launch) -> None:
        allowed = self._layout.algorithms(launch.protocol)
        if launch.algorithm not in allowed:
            names = ", ".join(algorithm.name for algorithm in allowed)
            raise ConfigError(
                f"{self._layout.world_size} ranks on {self._fabric.name} memory can use {names} with "
                f"{launch.protocol.name}, got {launch.algorithm.name}."
            )

    def _check(self, x: torch.Tensor, *others: torch.Tensor) -> None:
        if x.dtype not in DTYPE_NUMBERS:
            raise UnsupportedError(f"the CUDA all-reduce sums float32, bfloat16 and float16, got {x.dtype}.")
        self._check_memory(x, *others)
        for tensor in others:
            if tensor.shape != x.shape or tensor.dtype != x.dtype:
                raise ShapeError(f"all tensors of a call must be alike, got {x.shape} {x.dtype} and {tensor.shape}.")

    def _check_memory(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            if tensor.nbytes == 0:
                raise ShapeError(f"a message must have at least 1 byte, got shape {list(tensor.shape)}.")
            if not (tensor.device == self.device and tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0):
                raise ShapeError(
                    f"tensors must be contiguous on {self.device} and aligned to {_ALIGNMENT} bytes, got strides "
                    f"{tensor.stride()} on {tensor.device} at offset {tensor.data_ptr() % _ALIGNMENT}."
                )

    def _check_vectors(self, x: torch.Tensor, *vectors: torch.Tensor) -> None:
        self._check_memory(*vectors)
        for vector in vectors:
            if x.dim() != 2 or vector.shape != x.shape[1:] or vector.dtype != x.dtype:
                raise ShapeError(
                    f"x must be [rows, hidden], weight and bias [hidden] of its dtype, got {list(x.shape)} {x.dtype} "
                    f"and {list(vector.shape)} {vector.dtype}."
                )
