"""What the collectives of some passes were: operation, back end, size, count per pass, time per call.

A size comes from the file where the program recorded it (NCCL outside graphs, some CPU back ends). Else an all-reduce
of a pass with known rows is rows x hidden size x element size, if the caller knows the model. Else it is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fastverify.trace.events import NO_ID, Int64, TraceData
from fastverify.trace.kinds import CollectiveOp, KernelKind, op_of
from fastverify.trace.profile import CollectiveRow
from fastverify.trace.work import Work
from fastverify.units import ns_to_us

BytesSource = Literal["file", "model and rows", "unknown"]
# Source: c10::ScalarType names, as ParamCommsUtils writes them.
_ITEMSIZE = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("BFloat16", "Half", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
}


@dataclass(frozen=True)
class ModelSizes:
    """What the size of an all-reduce depends on, besides rows."""

    hidden_size: int
    itemsize: int = 2


@dataclass(frozen=True)
class Recorded:
    """What the file itself says of one collective."""

    op: CollectiveOp
    num_bytes: int | None


def recorded_collectives(trace: TraceData, work: Work) -> dict[int, Recorded]:
    """By row of the table that `work` is made of. The message size is one rank's input, of a gather too."""
    args = trace.collective_args
    found = {}
    for i in np.flatnonzero(args.owner == work.owner):
        op = op_of(trace.names[args.op[i]]) if args.op[i] != NO_ID else CollectiveOp.UNKNOWN
        itemsize = _ITEMSIZE.get(trace.names[args.dtype[i]]) if args.dtype[i] != NO_ID else None
        elements = int(args.in_elements[i])
        known = itemsize is not None and elements >= 0
        found[int(args.row[i])] = Recorded(op, elements * itemsize if known and itemsize else None)
    return found


@dataclass(frozen=True)
class _Key:
    kind: KernelKind
    op: CollectiveOp
    num_bytes: int | None
    bytes_source: BytesSource


def collective_rows(
    work: Work,
    recorded: dict[int, Recorded],
    passes: Sequence[tuple[Int64, int | None]],
    model: ModelSizes | None = None,
) -> tuple[CollectiveRow, ...]:
    """Rows of several passes, each given as its work and its token rows; most time first."""
    durations: dict[_Key, list[int]] = defaultdict(list)
    for rows, num_tokens in passes:
        for i in rows[work.is_collective[rows]].tolist():
            kind = work.kinds[work.name[i]]
            key = _key(kind, recorded.get(int(work.row[i])), num_tokens, model)
            durations[key].append(int(work.end_ns[i] - work.start_ns[i]))
    built = [_row(key, np.array(times), len(passes)) for key, times in durations.items()]
    return tuple(sorted(built, key=lambda row: -row.us_per_pass))


def _key(kind: KernelKind, said: Recorded | None, num_tokens: int | None, model: ModelSizes | None) -> _Key:
    op = kind.op or CollectiveOp.UNKNOWN
    if op is CollectiveOp.UNKNOWN and said:
        op = said.op
    if said and said.num_bytes is not None:
        return _Key(kind, op, said.num_bytes, "file")
    if model and num_tokens and op is CollectiveOp.ALL_REDUCE:
        return _Key(kind, op, num_tokens * model.hidden_size * model.itemsize, "model and rows")
    return _Key(kind, op, None, "unknown")


def _row(key: _Key, times_ns: Int64, num_passes: int) -> CollectiveRow:
    kind = key.kind
    return CollectiveRow(
        op=key.op,
        backend=kind.backend or "unknown",
        algorithm=kind.algorithm,
        protocol=kind.protocol,
        is_fused=kind.is_fused,
        num_bytes=key.num_bytes,
        bytes_source=key.bytes_source,
        count_per_pass=len(times_ns) / num_passes,
        us_per_pass=ns_to_us(float(times_ns.sum())) / num_passes,
        median_us=ns_to_us(float(np.median(times_ns))),
        min_us=ns_to_us(int(times_ns.min())),
        max_us=ns_to_us(int(times_ns.max())),
    )
