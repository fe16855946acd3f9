"""Device work joined with what launched it and what it is for: the one table that passes and costs are computed from.

A file without device work (CPU only) has its operators instead: they launch themselves, and a collective inside another
collective is counted once. Rows of no or negative length stay (they count as kernels) and cover no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastverify.trace.events import NO_ID, Bool, CollectiveOwner, DeviceWork, Int32, Int64, TraceData
from fastverify.trace.kinds import CollectiveOp, KernelClass, KernelKind, classify

NO_TIME = -1


@dataclass(frozen=True)
class Work:
    """Rows sorted by start. `launch_ns` and `thread` are NO_TIME and NO_ID for a row whose launch is not in the file.

    `kinds` is aligned with `names`; `row` indexes the table of the file that `owner` names.
    """

    owner: CollectiveOwner
    names: list[str]
    kinds: list[KernelKind]
    start_ns: Int64
    end_ns: Int64
    name: Int32
    stream: Int32
    correlation: Int64
    launch_ns: Int64
    thread: Int32
    row: Int64
    is_graph: Bool
    is_memory: Bool
    is_communication: Bool
    is_collective: Bool
    is_all_reduce: Bool
    is_attention: Bool
    is_sampling: Bool

    @property
    def is_cpu(self) -> bool:
        """Whether the rows are CPU operators."""
        return self.owner is CollectiveOwner.CPU_OP

    def __len__(self) -> int:
        return len(self.start_ns)

    def launched_on(self, thread: int) -> Int64:
        """Rows that a thread launched, in launch order; rows of one launch in the order they ran."""
        return self._by_launch(self.thread == thread)

    def launched(self) -> Int64:
        """Rows that any thread launched, in launch order."""
        return self._by_launch(self.launch_ns != NO_TIME)

    def _by_launch(self, chosen: Bool) -> Int64:
        rows = np.flatnonzero(chosen)
        return rows[np.argsort(self.launch_ns[rows], kind="stable")]


def work_of(trace: TraceData) -> Work:
    """The table of one rank."""
    return _device_work(trace) if len(trace.kernels) else _cpu_work(trace)


def _device_work(trace: TraceData) -> Work:
    kernels, launches = trace.kernels, trace.launches
    launch = _first_match(launches.correlation, kernels.correlation)
    has_launch = launch != NO_ID
    is_graph_launch = np.array(["GraphLaunch" in name for name in trace.names], dtype=bool)
    is_graph = np.zeros(len(kernels), dtype=bool)
    launch_ns = np.full(len(kernels), NO_TIME, dtype=np.int64)
    thread = np.full(len(kernels), NO_ID, dtype=np.int32)
    if has_launch.any():
        found = launch[has_launch]
        launch_ns[has_launch] = launches.ts_ns[found]
        thread[has_launch] = launches.thread[found]
        is_graph[has_launch] = is_graph_launch[launches.name[found]]
    return _table(
        trace,
        CollectiveOwner.KERNEL,
        start_ns=kernels.ts_ns,
        end_ns=kernels.end_ns,
        name=kernels.name,
        stream=kernels.stream,
        correlation=kernels.correlation,
        launch_ns=launch_ns,
        thread=thread,
        is_graph=is_graph | (kernels.graph_id > 0),
        is_copy=kernels.work != DeviceWork.KERNEL,
        row=np.arange(len(kernels)),
    )


def _cpu_work(trace: TraceData) -> Work:
    """Operators, and the annotations that back ends make of their collectives.

    gloo runs its collectives on threads of its own while the caller waits, so they are booked to the busiest thread.
    """
    ops, marks = trace.cpu_ops, trace.annotations
    chosen = np.array([classify(trace.names[i]).is_communication for i in marks.name], dtype=bool)
    busiest = np.bincount(ops.thread).argmax() if len(ops) else NO_ID
    thread = np.concatenate((ops.thread, np.full(int(chosen.sum()), busiest, dtype=np.int32)))
    start_ns = np.concatenate((ops.ts_ns, marks.ts_ns[chosen]))
    end_ns = start_ns + np.concatenate((ops.dur_ns, marks.dur_ns[chosen]))
    name = np.concatenate((ops.name, marks.name[chosen]))
    row = np.concatenate((np.arange(len(ops)), np.full(int(chosen.sum()), NO_ID)))
    order = np.lexsort((-end_ns, start_ns))
    none = np.zeros(len(order), dtype=bool)
    return _table(
        trace,
        CollectiveOwner.CPU_OP,
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        name=name[order],
        stream=thread[order],
        correlation=np.full(len(order), NO_ID, dtype=np.int64),
        launch_ns=start_ns[order],
        thread=thread[order],
        is_graph=none,
        is_copy=none,
        row=row[order],
    )


def _table(
    trace: TraceData,
    owner: CollectiveOwner,
    *,
    start_ns: Int64,
    end_ns: Int64,
    name: Int32,
    stream: Int32,
    correlation: Int64,
    launch_ns: Int64,
    thread: Int32,
    is_graph: Bool,
    is_copy: Bool,
    row: Int64,
) -> Work:
    kinds = _kinds_of_used(trace, name)

    def where(test: list[bool]) -> Bool:
        return np.array(test, dtype=bool)[name] if len(name) else np.zeros(0, dtype=bool)

    communication = where([kind.is_communication for kind in kinds]) & ~is_copy
    collective = where([kind.is_collective for kind in kinds]) & ~is_copy
    if owner is CollectiveOwner.CPU_OP:
        communication &= ~_inside_another(start_ns, end_ns, thread, communication)
        collective &= communication
    return Work(
        owner,
        trace.names,
        kinds,
        start_ns,
        end_ns,
        name,
        stream,
        correlation,
        launch_ns,
        thread,
        row,
        is_graph,
        is_memory=is_copy | where([kind.kernel_class is KernelClass.MEMORY for kind in kinds]),
        is_communication=communication,
        is_collective=collective,
        is_all_reduce=collective & where([kind.op is CollectiveOp.ALL_REDUCE for kind in kinds]),
        is_attention=where([kind.kernel_class is KernelClass.ATTENTION for kind in kinds]) & ~is_copy,
        is_sampling=where([kind.kernel_class is KernelClass.SAMPLING for kind in kinds]) & ~is_copy,
    )


def _kinds_of_used(trace: TraceData, name: Int32) -> list[KernelKind]:
    """Kind of every name; names of other tables are not looked up and stay OTHER."""
    used = set(np.unique(name).tolist())
    other = KernelKind(KernelClass.OTHER)
    return [classify(text) if i in used else other for i, text in enumerate(trace.names)]


def _first_match(known: Int64, wanted: Int64) -> Int64:
    """Index into `known` of the first equal id, NO_ID for none; ids up to 0 are no ids."""
    result = np.full(len(wanted), NO_ID, dtype=np.int64)
    if not len(known) or not len(wanted):
        return result
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
    found = order[place]
    hit = (known[found] == wanted) & (wanted > 0)
    result[hit] = found[hit]
    return result


def _inside_another(start_ns: Int64, end_ns: Int64, thread: Int32, chosen: Bool) -> Bool:
    """Chosen rows that lie inside an earlier chosen row of their thread."""
    inside = np.zeros(len(start_ns), dtype=bool)
    reach: dict[int, int] = {}
    for i in np.flatnonzero(chosen).tolist():
        last = reach.get(int(thread[i]), NO_TIME)
        inside[i] = int(end_ns[i]) <= last
        reach[int(thread[i])] = max(last, int(end_ns[i]))
    return inside
