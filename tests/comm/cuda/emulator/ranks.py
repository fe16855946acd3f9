"""Ranks whose GPU is the emulated machine: inboxes, counters and arguments as the package's Python lays them out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastverify.comm.cuda.kernels import FUNCTIONS, make_spec
from fastverify.comm.cuda.launch import Launch, Protocol
from fastverify.comm.cuda.push import fill_inbox
from fastverify.comm.cuda.rank import _Call
from fastverify.comm.cuda.workspace import Layout
from tests.comm.cuda.emulator.emulator import Edit, Emulator, Machine, Module

# A word of this many bytes arrives whole; what inbox.cuh asks of the hardware.
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
        first_epoch: int = 1,
        edits: tuple[Edit, ...] = (),
        absent: Sequence[int] = (),
    ) -> None:
        self.world_size = len(speeds)
        self.layout = Layout(self.world_size, max_bytes)
        self.machine = Machine(emulator, speeds, seed)
        self._emulator, self._edits, self._absent = emulator, edits, absent
        self._inboxes = [_aligned(self.layout.num_bytes) for _ in speeds]
        self._controls = [torch.zeros(16, dtype=torch.int32) for _ in speeds]
        for rank, inbox in enumerate(self._inboxes):
            fill_inbox(inbox, self.layout)
            self.machine.claim(rank, "the inbox", inbox.data_ptr(), inbox.numel())
            self._controls[rank][:3] = first_epoch - 2**32 if first_epoch >= 2**31 else first_epoch

    def all_reduce(self, inputs: list[torch.Tensor], launch: Launch) -> list[torch.Tensor]:
        """Outputs, which hold their sums after `run`."""
        spec = make_spec("all_reduce.cu", self.world_size, inputs[0].dtype, launch.units)
        module = self._emulator.load(spec, FUNCTIONS[spec.source], self._edits)
        name = f"fastverify_all_reduce_{launch.protocol.name.lower()}"
        outputs = [torch.full_like(x, float("nan")) for x in inputs]
        for rank, (x, out) in enumerate(zip(inputs, outputs, strict=True)):
            self._start(module, name, launch, rank, self._make_call(rank, launch, x, out))
        return outputs

    def run(self, max_steps: int = 2_000_000) -> int:
        """Run all calls to their ends."""
        return self.machine.run(max_steps)

    def _make_call(self, rank: int, launch: Launch, x: torch.Tensor, out: torch.Tensor) -> _Call:
        region = self.layout.region(launch.protocol)
        call = _Call()
        for peer, inbox in enumerate(self._inboxes):
            call.inboxes[peer] = inbox.data_ptr() + region.offset
        call.own_inbox = call.inboxes[rank]
        call.control = self._controls[rank].data_ptr()
        call.input, call.output, call.num_bytes = x.data_ptr(), out.data_ptr(), x.nbytes
        call.area_bytes, call.max_chunks = region.area_bytes, self.layout.max_chunks
        call.rank, call.protocol, call.pause_ns = rank, launch.protocol.value, launch.pause_ns
        return call

    def _start(self, module: Module, name: str, launch: Launch, rank: int, call: _Call) -> None:
        if rank in self._absent:
            return
        self.machine.launch(
            *(rank, module, name, call),
            blocks=launch.blocks,
            threads=launch.threads,
            word_bytes=WORD_BYTES[launch.protocol],
            cluster=launch.cluster,
        )


def _aligned(num_bytes: int) -> torch.Tensor:
    whole = torch.empty(num_bytes + 256, dtype=torch.uint8)
    return whole[-whole.data_ptr() % 256 :][:num_bytes]
