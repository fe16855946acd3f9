"""Ranks whose GPU is the emulated machine: inboxes, counters and arguments as the package's Python lays them out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from fastverify.comm.cuda.call import Call, ControlFields, StatusFields, make_call
from fastverify.comm.cuda.kernels import FUNCTIONS, make_spec, source_of
from fastverify.comm.cuda.launch import Launch, Protocol
from fastverify.comm.cuda.push import fill_inbox
from fastverify.comm.cuda.workspace import Layout
from tests.comm.cuda.emulator.emulator import Edit, Emulator, Machine

# A word of this many bytes arrives whole: what inbox.cuh asks of the hardware.
WORD_BYTES = {Protocol.LINES: 8, Protocol.SENTINEL: 4, Protocol.FLAGS: 4}


class EmulatedRanks:
    """Ranks on one emulated machine. Calls are put on the ranks' streams; `run` starts them all."""

    def __init__(
        self,
        emulator: Emulator,
        speeds: Sequence[int],
        seed: int,
        *,
        max_bytes: int = 4096,
        has_outboxes: bool = False,
        first_epoch: int = 1,
        spin_bound: int = 0,
        edits: tuple[Edit, ...] = (),
        absent: Sequence[int] = (),
    ) -> None:
        self.world_size = len(speeds)
        self.layout = Layout(self.world_size, max_bytes, has_outboxes=has_outboxes)
        self.machine = Machine(emulator, speeds, seed)
        self._emulator, self._edits, self._absent, self._spin_bound = emulator, edits, absent, spin_bound
        self._inboxes = [_aligned(self.layout.num_bytes) for _ in speeds]
        self._alive: list[torch.Tensor | None] = []  # what calls point to
        self.controls = [ControlFields(epoch=first_epoch) for _ in speeds]
        self.statuses = [StatusFields() for _ in speeds]
        for rank, inbox in enumerate(self._inboxes):
            fill_inbox(inbox, self.layout)
            self.machine.claim(rank, "the inbox", inbox.data_ptr(), inbox.numel())

    def all_reduce(self, inputs: list[torch.Tensor], launch: Launch, *, in_place: bool = False) -> list[torch.Tensor]:
        """Outputs, which hold their sums after `run`. In place: copies of the inputs are both."""
        outputs = [x.clone() if in_place else torch.full_like(x, float("nan")) for x in inputs]
        inputs = outputs if in_place else inputs
        calls = [self._make_call(rank, launch, x, out) for rank, (x, out) in enumerate(_pairs(inputs, outputs))]
        self._start(source_of(launch), source_of(launch), launch, inputs[0].dtype, calls)
        return outputs

    def all_gather(self, inputs: list[torch.Tensor], launch: Launch) -> list[torch.Tensor]:
        """Outputs [world_size, *shape], which hold every rank's input after `run`."""
        outputs = [torch.full((self.world_size, *x.shape), float("nan"), dtype=x.dtype) for x in inputs]
        calls = [self._make_call(rank, launch, x, out) for rank, (x, out) in enumerate(_pairs(inputs, outputs))]
        for call in calls:
            call.output_stride = inputs[0].nbytes
        self._start("gather", "all_gather", launch, torch.bfloat16, calls)
        return outputs

    def all_reduce_residual_rmsnorm(
        self,
        inputs: list[torch.Tensor],
        residuals: list[torch.Tensor],
        weight: torch.Tensor,
        eps: float,
        launch: Launch,
        bias: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Outputs, which hold their norms after `run`; the residuals then hold their sums."""
        outputs = [torch.full_like(x, float("nan")) for x in inputs]
        calls = [self._make_call(rank, launch, x, out) for rank, (x, out) in enumerate(_pairs(inputs, outputs))]
        self._add_norm(calls, residuals, weight, eps, bias)
        self._start("fused", "fused", launch, inputs[0].dtype, calls)
        return outputs

    def all_reduce_residual_rmsnorm_fp8(
        self,
        inputs: list[torch.Tensor],
        residuals: list[torch.Tensor],
        weight: torch.Tensor,
        eps: float,
        launch: Launch,
        bias: torch.Tensor | None = None,
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Norms in 8 bits and their scales, which are there after `run`."""
        outputs = [(torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.full((len(x),), -1.0)) for x in inputs]
        calls = [self._make_call(rank, launch, x, x) for rank, x in enumerate(inputs)]
        self._add_norm(calls, residuals, weight, eps, bias)
        for call, (quantised, scales) in zip(calls, outputs, strict=True):
            self._alive += quantised, scales
            call.output, call.quantised, call.scale_out = 0, quantised.data_ptr(), scales.data_ptr()
        self._start("fused_fp8", "fused_fp8", launch, inputs[0].dtype, calls)
        return outputs

    def run(self, max_steps: int = 5_000_000) -> int:
        """Run all calls to their ends and return the steps that it took."""
        return self.machine.run(max_steps)

    def _make_call(self, rank: int, launch: Launch, x: torch.Tensor, out: torch.Tensor) -> Call:
        addresses = [inbox.data_ptr() for inbox in self._inboxes]
        call = make_call(self.layout, addresses, rank, launch, x.nbytes, x.element_size())
        call.control, call.status = ctypes.addressof(self.controls[rank]), ctypes.addressof(self.statuses[rank])
        self._alive += x, out
        call.input, call.output, call.spin_bound = x.data_ptr(), out.data_ptr(), self._spin_bound
        return call

    def _add_norm(
        self,
        calls: list[Call],
        residuals: list[torch.Tensor],
        weight: torch.Tensor,
        eps: float,
        bias: torch.Tensor | None,
    ) -> None:
        self._alive += *residuals, weight, bias
        for call, residual in zip(calls, residuals, strict=True):
            call.residual, call.weight, call.bias = residual.data_ptr(), weight.data_ptr(), _address(bias)
            call.row_bytes, call.eps = weight.nbytes, eps

    def _start(self, source: str, operation: str, launch: Launch, dtype: torch.dtype, calls: list[Call]) -> None:
        spec = make_spec(
            *(f"{source}.cu", self.world_size, dtype, launch.units, launch.cluster), has_scouts=launch.has_scouts
        )
        module = self._emulator.load(spec, FUNCTIONS[spec.source], self._edits)
        outbox = "outbox_" if self.layout.uses_outbox(launch.protocol) else ""
        for rank, call in enumerate(calls):
            if rank in self._absent:
                continue
            self.machine.launch(
                *(rank, module, f"fastverify_{operation}_{outbox}{launch.protocol.name.lower()}", call),
                blocks=launch.blocks,
                threads=launch.threads,
                word_bytes=WORD_BYTES[launch.protocol],
                cluster=launch.cluster,
            )


def _pairs(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> zip[tuple[torch.Tensor, torch.Tensor]]:
    return zip(inputs, outputs, strict=True)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _aligned(num_bytes: int) -> torch.Tensor:
    whole = torch.empty(num_bytes + 256, dtype=torch.uint8)
    return whole[-whole.data_ptr() % 256 :][:num_bytes]
