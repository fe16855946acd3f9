"""The one argument of every kernel, and the words through which a kernel and the host speak while it runs.

It mirrors sources/call.cuh; a test compiles that file and compares sizes and offsets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from fastverify.comm.cuda.launch import Launch
from fastverify.comm.cuda.workspace import Layout, Phase

MAX_RANKS = 8


class RegionFields(ctypes.Structure):
    """Must match Region in sources/call.cuh."""

    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("slot_bytes", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("area_bytes", ctypes.c_uint64),
    ]


class Call(ctypes.Structure):
    """Must match Call in sources/call.cuh."""

    _fields_ = [
        ("inboxes", ctypes.c_uint64 * MAX_RANKS),
        ("control", ctypes.c_uint64),
        ("status", ctypes.c_uint64),
        ("input", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("residual", ctypes.c_uint64),
        ("weight", ctypes.c_uint64),
        ("bias", ctypes.c_uint64),
        ("quantised", ctypes.c_uint64),
        ("scale_out", ctypes.c_uint64),
        ("num_bytes", ctypes.c_uint64),
        ("output_stride", ctypes.c_uint64),
        ("spin_bound", ctypes.c_uint64),
        ("regions", RegionFields * 3),
        ("rank", ctypes.c_uint32),
        ("pause_ns", ctypes.c_uint32),
        ("row_bytes", ctypes.c_uint32),
        ("eps", ctypes.c_float),
    ]


class ControlFields(ctypes.Structure):
    """In GPU memory; must match Control in sources/call.cuh. All zero but the epoch, which starts at 1."""

    _fields_ = [
        ("epoch", ctypes.c_uint32),
        ("arrived_blocks", ctypes.c_uint32),
        ("has_reported", ctypes.c_uint32),
        ("is_looking", ctypes.c_uint32),
        ("is_aborted", ctypes.c_uint32),
    ]


class StatusFields(ctypes.Structure):
    """In host memory; must match Status in sources/call.cuh."""

    _fields_ = [
        ("code", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("unit", ctypes.c_uint32),
        ("abort", ctypes.c_uint32),
    ]


class Outcome(IntEnum):
    """Why a kernel left without its data; the numbers are those of Status.code."""

    LATE = 1
    ABORTED = 2


@dataclass(frozen=True)
class RankStatus:
    """What the first thread that gave up was waiting for. `unit`: the line or batch within the peer's data."""

    kind: Outcome
    peer: int
    epoch: int
    unit: int


class StatusWords:
    """Pinned host memory that kernels of one rank write and read; reading it here makes no call to CUDA."""

    def __init__(self) -> None:
        num_words = ctypes.sizeof(StatusFields) // ctypes.sizeof(ctypes.c_uint32)
        self._memory = torch.zeros(num_words, dtype=torch.int32, pin_memory=True)
        self._fields = StatusFields.from_address(self._memory.data_ptr())

    @property
    def address(self) -> int:
        """The same on the CPU and the GPU."""
        return self._memory.data_ptr()

    def read(self) -> RankStatus | None:
        """None while no kernel has given up. The kernel writes the code last."""
        code = self._fields.code
        if code == 0:
            return None
        return RankStatus(Outcome(code), self._fields.peer, self._fields.epoch, self._fields.unit)

    def abort(self) -> None:
        """Waiting kernels leave within about 0.1 ms, and so does every later one that has to wait."""
        self._fields.abort = 1


def make_call(
    layout: Layout, inboxes: Sequence[int], rank: int, launch: Launch, num_bytes: int, item_bytes: int
) -> Call:
    """The argument without tensors: memory, and how this call cuts it. `inboxes`: addresses as this rank sees them."""
    call = Call()
    for peer, inbox in enumerate(inboxes):
        call.inboxes[peer] = inbox
    for phase in Phase:
        region = layout.regions[launch.protocol, phase]
        area_bytes = layout.area_bytes(launch.algorithm, launch.protocol, phase, num_bytes, item_bytes)
        call.regions[phase] = RegionFields(region.offset, region.slot_bytes, region.flags, area_bytes)
    call.num_bytes, call.rank, call.pause_ns = num_bytes, rank, launch.pause_ns
    return call
