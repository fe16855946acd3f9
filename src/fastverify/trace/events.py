"""What one rank's profiler file holds, as columns: device work, launches, annotations, CPU operators, facts.

All times are int64 nanoseconds on the file's own clock; `TraceInfo.base_time_ns` turns them into Unix time. A row of
one table never moves to another: an annotation is not device work, whatever stream it is drawn on. Nothing here knows
what a name means (kinds.py) or what a pass is (passes.py). Source of the fields: libkineto's output_json.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Uint8 = NDArray[np.uint8]
Bool = NDArray[np.bool_]

NO_ID = -1


class DeviceWork(IntEnum):
    """What a row of `Kernels` is."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class CollectiveOwner(IntEnum):
    """Which table `CollectiveArgs.row` points into."""

    KERNEL = 0
    CPU_OP = 1


@dataclass(frozen=True)
class Kernels:
    """Device work (kernels, copies, memsets), sorted by start.

    An id that the file does not give is NO_ID; `graph_id` is 0 or NO_ID outside a graph replay.
    """

    ts_ns: Int64
    dur_ns: Int64
    name: Int32
    device: Int32
    stream: Int32
    correlation: Int64
    external_id: Int64
    graph_id: Int64
    num_bytes: Int64  # of copies and memsets, from the file
    work: Uint8  # DeviceWork

    @property
    def end_ns(self) -> Int64:
        """Where each row ends."""
        return self.ts_ns + self.dur_ns

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True)
class Launches:
    """Calls that launched device work or should have, sorted by start; `thread` indexes `TraceData.threads`."""

    ts_ns: Int64
    dur_ns: Int64
    name: Int32
    thread: Int32
    correlation: Int64

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True)
class Annotations:
    """Named ranges that the program opened, sorted by start; `on_device` marks the copies drawn on streams."""

    ts_ns: Int64
    dur_ns: Int64
    name: Int32
    thread: Int32
    on_device: Bool

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True)
class CpuOps:
    """CPU operators, sorted by start: all of them in a file without device work, else only those of collectives."""

    ts_ns: Int64
    dur_ns: Int64
    name: Int32
    thread: Int32
    external_id: Int64

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True)
class CollectiveArgs:
    """What the program recorded about a collective: few rows, for NCCL outside graphs and for CPU back ends.

    `row` indexes the table that `owner` names. `op`, `dtype`, `group` and `group_description` index
    `TraceData.names`. Elements are per rank. A value that the file does not give is NO_ID.
    """

    owner: Uint8
    row: Int32
    op: Int32
    dtype: Int32
    group: Int32
    group_description: Int32
    group_size: Int32
    in_elements: Int64
    out_elements: Int64
    sequence: Int64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class TraceInfo:
    """Facts about the file and the rank; `metadata` holds every top-level key but the events."""

    source: str
    rank: int
    rank_source: str  # "distributedInfo", "process label", "file name" or "default"
    world_size: int
    base_time_ns: int = 0
    process_label: str = ""
    device_names: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HealthRow:
    """One kind of fault: how often, and one place to look at."""

    fault: str
    count: int
    example: str


@dataclass
class Health:
    """Everything that was wrong with the file; empty when nothing was."""

    rows: list[HealthRow] = field(default_factory=list)

    def add(self, fault: str, count: int, example: str = "") -> None:
        """Record a fault, or add to its count; a count of zero records nothing."""
        for index, row in enumerate(self.rows):
            if row.fault == fault:
                self.rows[index] = HealthRow(fault, row.count + count, row.example or example)
                return
        if count:
            self.rows.append(HealthRow(fault, count, example))

    def count(self, fault: str) -> int:
        """How often a fault was seen."""
        return next((row.count for row in self.rows if row.fault == fault), 0)


@dataclass(frozen=True)
class TraceData:
    """One rank of one profiler file."""

    info: TraceInfo
    names: list[str]
    threads: list[tuple[str, str]]  # (process id, thread id) as the file spells them
    kernels: Kernels
    launches: Launches
    annotations: Annotations
    cpu_ops: CpuOps
    collective_args: CollectiveArgs
    health: Health
