from dataclasses import replace

import numpy as np

from fastverify.trace.events import CpuOps
from fastverify.trace.passes import find_passes
from fastverify.trace.work import work_of
from tests.trace.make import ALL_REDUCE, COPY, GEMM, Kernel, Mark, make_trace


def cpu_trace(ops: list[tuple[str, float, float, int]], marks: list[Mark]):
    """Operators as (name, start, duration, thread) in us."""
    trace = make_trace([], marks)
    names = [*trace.names, *(name for name, *_ in ops)]
    first = len(trace.names)
    columns = [np.array([int(op[i] * 1000) for op in ops], dtype=np.int64) for i in (1, 2)]
    ids = np.arange(first, first + len(ops), dtype=np.int32)
    threads = np.array([op[3] for op in ops], dtype=np.int32)
    return replace(trace, names=names, cpu_ops=CpuOps(*columns, ids, threads, np.full(len(ops), -1)))


def test_a_copy_inside_a_device_is_memory_whatever_its_name() -> None:
    work = work_of(
        make_trace([Kernel(COPY, 0, 5, 0), Kernel("__amd_rocclr_copyBuffer", 5, 5, 1), Kernel(GEMM, 9, 1, 2)])
    )
    assert work.is_memory.tolist() == [True, True, False]


def test_the_first_launch_of_a_correlation_counts_and_zero_is_none() -> None:
    trace = make_trace([Kernel(GEMM, 0, 5, 0), Kernel(ALL_REDUCE, 9, 1, None)])
    trace.kernels.correlation[:] = [1, 0]
    work = work_of(trace)
    assert work.launch_ns.tolist() == [0, -1]
    assert work.is_collective.tolist() == [False, True]


def test_collectives_of_gloo_run_elsewhere_and_belong_to_the_waiting_thread() -> None:
    ops = [("aten::mm", 1, 2, 0), ("aten::mm", 8, 2, 0), ("aten::mm", 30, 2, 0)]
    marks = [Mark("fastverify.verify", 0, 20, thread=0), Mark("gloo:all_reduce", 3, 7, thread=3)]
    found = find_passes(cpu_trace(ops, marks))
    assert found.rule == "annotation to CPU operator"
    (one,) = found.passes
    assert (len(one.work), int(found.work.is_all_reduce[one.work].sum())) == (3, 1)


def test_a_collective_inside_a_collective_is_one() -> None:
    ops = [("aten::mm", 1, 2, 0)]
    marks = [Mark("fastverify::all_reduce", 4, 9), Mark("gloo:all_reduce", 5, 8, thread=2)]
    work = work_of(cpu_trace(ops, marks))
    assert [work.names[i] for i in work.name[work.is_collective]] == ["fastverify::all_reduce"]
