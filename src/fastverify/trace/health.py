"""Looks at the events of one rank for what cannot be right, repairs what would spoil every sum, and says all of it.

Repaired: device work without a time is left out, negative durations become zero, and a duration that swallows the work
behind it on the same stream ends where that work begins. Everything else is only counted. Faults of the text itself
come from the scanner. Source of the kinds: public issues of Kineto, PyTorch and trace tools (docs/traces.md).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from fastverify.trace.events import (
    NO_ID,
    Bool,
    CollectiveArgs,
    CollectiveOwner,
    DeviceWork,
    Int64,
    Kernels,
    Launches,
    TraceData,
)
from fastverify.trace.kinds import CollectiveOp, classify, op_of
from fastverify.trace.links import GRAPH_LAUNCH, LAUNCH, is_in, where_name
from fastverify.units import NS_PER_MS, NS_PER_S

# Arbitrary: real kernels of inference and training end within a second; dependent launches overlap by microseconds.
IMPOSSIBLE_NS = NS_PER_S
# Arbitrary: clocks of host and device agree to microseconds; a thousand of them is no rounding.
CLOCK_SLACK_NS = NS_PER_MS
_DROPPED = re.compile(r"drop|out.of.range|buffer|lost|exceed", re.IGNORECASE)


def examine(trace: TraceData, *, num_cpu_ops: int) -> TraceData:
    """The rank with repaired times and a filled health block; `num_cpu_ops` is how many the file held."""
    trace = _leave_out_without_time(trace)
    trace = replace(trace, kernels=_repair_durations(trace))
    _examine_header(trace)
    _examine_links(trace)
    _examine_collectives(trace)
    if trace.info.device_names and not len(trace.kernels):  # a recording of a CPU names no device
        trace.health.add("no device work", 1, f"{num_cpu_ops} CPU operators, {len(trace.launches)} runtime calls")
    return trace


def _leave_out_without_time(trace: TraceData) -> TraceData:
    """Profilers write 0 for a time that they lost; one such row would stretch the file over decades."""
    kernels = trace.kernels
    if not len(kernels):
        return trace
    is_lost = (kernels.ts_ns <= 0) & ((kernels.dur_ns <= 0) | (kernels.ts_ns[len(kernels) // 2] > NS_PER_S))
    trace.health.add("device work without a time", int(is_lost.sum()), _example(trace, is_lost))
    return _keep_kernels(trace, ~is_lost) if is_lost.any() else trace


def _keep_kernels(trace: TraceData, kept: Bool) -> TraceData:
    new_row = np.where(kept, np.cumsum(kept) - 1, NO_ID)
    args = trace.collective_args
    of_kernel = args.owner == CollectiveOwner.KERNEL
    rows = args.row.copy()
    rows[of_kernel] = new_row[rows[of_kernel]]
    columns = {name: column[kept] for name, column in vars(trace.kernels).items()}
    args_columns = {name: column[rows != NO_ID] for name, column in {**vars(args), "row": rows}.items()}
    return replace(trace, kernels=Kernels(**columns), collective_args=CollectiveArgs(**args_columns))


def _repair_durations(trace: TraceData) -> Kernels:
    kernels, health = trace.kernels, trace.health
    is_negative = kernels.dur_ns < 0
    health.add("negative duration", int(is_negative.sum()), _example(trace, is_negative))
    duration = np.where(is_negative, 0, kernels.dur_ns)
    is_zero = (kernels.dur_ns == 0) & (kernels.work == DeviceWork.KERNEL)
    health.add("zero duration", int(is_zero.sum()), _example(trace, is_zero))
    room = _time_to_next(kernels)
    is_impossible = (duration >= IMPOSSIBLE_NS) & (duration > room)
    health.add("impossible duration", int(is_impossible.sum()), _example(trace, is_impossible))
    return replace(kernels, dur_ns=np.where(is_impossible, room, duration))


def _time_to_next(kernels: Kernels) -> Int64:
    """From the start of each row to the start of the next one on its stream; huge for the last."""
    order = np.lexsort((kernels.ts_ns, kernels.stream, kernels.device))
    starts, stream, device = kernels.ts_ns[order], kernels.stream[order], kernels.device[order]
    room = np.full(len(kernels), np.iinfo(np.int64).max, dtype=np.int64)
    is_same = (stream[1:] == stream[:-1]) & (device[1:] == device[:-1])
    room[order[:-1][is_same]] = np.diff(starts)[is_same]
    return room


def _examine_header(trace: TraceData) -> None:
    info, health = trace.info, trace.health
    if not info.metadata:
        health.add("no header", 1, "devices, rank and clock base are unknown")
    elif info.rank_source == "default":
        health.add("rank not in the file", 1, f"taken as {info.rank}")
    warnings = info.metadata.get("WARNING")
    dropped = [line for line in warnings if _DROPPED.search(str(line))] if isinstance(warnings, list) else []
    health.add("profiler says that it lost records", len(dropped), str(dropped[0])[:120] if dropped else "")


def _examine_links(trace: TraceData) -> None:
    """Launches and device work that should name each other."""
    kernels, launches, health = trace.kernels, trace.launches, trace.health
    has_kernel = is_in(launches.correlation, np.unique(kernels.correlation))
    is_graph = where_name(trace.names, launches.name, GRAPH_LAUNCH.search) & ~has_kernel
    health.add("graph replay without its kernels", int(is_graph.sum()), _example(trace, is_graph, launches))
    is_lonely = where_name(trace.names, launches.name, LAUNCH.search) & ~has_kernel & ~is_graph
    health.add("launch without its kernel", int(is_lonely.sum()), _example(trace, is_lonely, launches))
    order = np.flatnonzero(has_kernel & (launches.correlation > 0))
    order = order[np.argsort(launches.correlation[order], kind="stable")]
    launched = launches.correlation[order]
    has_launch = is_in(kernels.correlation, launched)
    health.add("kernel without its launch", int((~has_launch).sum()), _example(trace, ~has_launch))
    is_repeated = np.diff(launched, prepend=NO_ID) == 0
    example = _example(trace, np.isin(np.arange(len(launches)), order[is_repeated][:1]), launches)
    health.add("correlation of several launches", int(is_repeated.sum()), example)
    if len(order):
        first = order[np.minimum(np.searchsorted(launched, kernels.correlation), len(order) - 1)]
        is_early = has_launch & (kernels.ts_ns < launches.ts_ns[first] - CLOCK_SLACK_NS)
        health.add("kernel before its launch", int(is_early.sum()), _example(trace, is_early))


def _examine_collectives(trace: TraceData) -> None:
    """Collectives that neither their name nor what the program recorded says the kind of."""
    args = trace.collective_args
    of_kernel = (args.owner == CollectiveOwner.KERNEL) & (args.op != NO_ID)
    told = {
        int(row)
        for row, op in zip(args.row[of_kernel], args.op[of_kernel], strict=True)
        if op_of(trace.names[op]) is not CollectiveOp.UNKNOWN
    }
    is_unknown = where_name(trace.names, trace.kernels.name, lambda name: classify(name).op is CollectiveOp.UNKNOWN)
    rows = [row for row in np.flatnonzero(is_unknown).tolist() if row not in told]
    example = trace.names[trace.kernels.name[rows[0]]] if rows else ""
    trace.health.add("collective of unknown kind", len(rows), example[:120])


def _example(trace: TraceData, marked: Bool, table: Kernels | Launches | None = None) -> str:
    rows = np.flatnonzero(marked)
    if not len(rows):
        return ""
    table = trace.kernels if table is None else table
    row = rows[0]
    return f"{trace.names[table.name[row]][:80]} at {table.ts_ns[row]} ns, {table.dur_ns[row]} ns long"
