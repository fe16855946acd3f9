"""Kernel name -> what it is: a collective with its back end, algorithm and protocol, or a class of computing.

The knowledge is the table in kind_table.py; this file only applies it. A fused collective (all-reduce and norm in one
kernel) counts as one collective and is marked: its time cannot be split into the two parts from a profiler file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from fastverify.trace.kind_names import Backend, CollectiveOp, KernelClass
from fastverify.trace.kind_table import COLLECTIVES, COMPUTE, CollectiveRow

__all__ = ["Backend", "CollectiveOp", "KernelClass", "KernelKind", "classify", "op_of"]

_OPS = {
    "allreduce": CollectiveOp.ALL_REDUCE,
    "allgather": CollectiveOp.ALL_GATHER,
    "allgatherbase": CollectiveOp.ALL_GATHER,
    "allgatherv": CollectiveOp.ALL_GATHER,
    "allgatherintotensorcoalesced": CollectiveOp.ALL_GATHER,
    "allreducecoalesced": CollectiveOp.ALL_REDUCE,
    "reducescattertensorcoalesced": CollectiveOp.REDUCE_SCATTER,
    "reducescatter": CollectiveOp.REDUCE_SCATTER,
    "reducescatterbase": CollectiveOp.REDUCE_SCATTER,
    "alltoall": CollectiveOp.ALL_TO_ALL,
    "alltoallv": CollectiveOp.ALL_TO_ALL,
    "alltoallbase": CollectiveOp.ALL_TO_ALL,
    "broadcast": CollectiveOp.BROADCAST,
    "reduce": CollectiveOp.REDUCE,
    "sendrecv": CollectiveOp.SEND_RECV,
    "send": CollectiveOp.SEND_RECV,
    "recv": CollectiveOp.SEND_RECV,
    "sendtensorlist": CollectiveOp.SEND_RECV,
    "recvtensorlist": CollectiveOp.SEND_RECV,
    "barrier": CollectiveOp.SIGNAL,
}
_SHOTS = {"oneshot": "one-shot", "twoshot": "two-shot"}


@dataclass(frozen=True)
class KernelKind:
    """What one kernel is. The collective fields are None, empty or False for computing."""

    kernel_class: KernelClass
    op: CollectiveOp | None = None
    backend: Backend | None = None
    algorithm: str = ""
    protocol: str = ""
    is_fused: bool = False
    source: str = ""

    @property
    def is_communication(self) -> bool:
        """Its time is communication."""
        return self.kernel_class is KernelClass.COLLECTIVE

    @property
    def is_collective(self) -> bool:
        """It counts as one collective; a handshake kernel does not."""
        return self.is_communication and self.op is not CollectiveOp.SIGNAL


@cache
def classify(name: str) -> KernelKind:
    """The first row of the table that matches the kernel's name, mangled or not."""
    for pattern, row in _compiled_collectives():
        found = pattern.search(name)
        if found:
            return _collective_kind(row, found.groupdict())
    for compute in COMPUTE:
        if re.search(compute.pattern, name):
            return KernelKind(compute.kernel_class, source=compute.source)
    return KernelKind(KernelClass.OTHER)


def op_of(word: str) -> CollectiveOp:
    """Any program's word for a collective ("_allgather_base", "AllReduce", "all_to_allv") as ours."""
    return _OPS.get(word.replace("_", "").lower(), CollectiveOp.UNKNOWN)


@cache
def _compiled_collectives() -> list[tuple[re.Pattern[str], CollectiveRow]]:
    return [(re.compile(row.pattern), row) for row in COLLECTIVES]


def _collective_kind(row: CollectiveRow, groups: dict[str, str | None]) -> KernelKind:
    algorithm = row.algorithm or groups.get("algorithm") or ""
    algorithm = algorithm.upper() if row.backend is Backend.NCCL else algorithm
    op = op_of(groups.get("op") or "") if row.op is CollectiveOp.UNKNOWN else row.op
    return KernelKind(
        KernelClass.COLLECTIVE,
        op,
        row.backend,
        _SHOTS.get(algorithm.replace("_", ""), algorithm),
        row.protocol or (groups.get("protocol") or "").removeprefix("_"),
        row.fused,
        row.source,
    )
