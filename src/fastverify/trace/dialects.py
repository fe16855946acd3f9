"""The categories of profiler files, old and new, and the table that each belongs to.

Source: libkineto's ActivityType.h and output_json.cpp for torch 1.8 to 2.13, and real files. A category that is not
here is counted in the health block, never dropped in silence.
"""

from __future__ import annotations

from enum import IntEnum


class Table(IntEnum):
    """Where an event goes. Must match Table in csrc/trace/event.hpp."""

    SKIP = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    LAUNCH = 4
    ANNOTATION = 5
    DEVICE_ANNOTATION = 6
    CPU_OP = 7


_CATEGORIES = {
    Table.KERNEL: "kernel Kernel concurrent_kernel mtia_ccp_events hpu_op privateuse1_kernel",
    Table.MEMCPY: "gpu_memcpy Memcpy",
    Table.MEMSET: "gpu_memset Memset",
    Table.LAUNCH: "cuda_runtime cuda_driver Runtime hip_runtime xpu_runtime mtia_runtime privateuse1_runtime "
    "privateuse1_driver glow_runtime",
    Table.ANNOTATION: "user_annotation",
    Table.DEVICE_ANNOTATION: "gpu_user_annotation",
    Table.CPU_OP: "cpu_op Operator",
    # Arrows, Python frames, allocations, profiler overhead, waits drawn on streams: no work of the device.
    Table.SKIP: "ac2g async async_cpu_to_gpu async_gpu fwdbwd forward_backward python_function cpu_instant_event "
    "overhead cuda_sync cuda_event Trace cuda_profiler_range mtia_counters mtia_insight cuda_event_sync",
}
CATEGORIES: dict[str, int] = {word: int(table) for table, words in _CATEGORIES.items() for word in words.split()}

# A CPU operator with one of these in its name is kept beside device work: it tells what a collective kernel did.
COLLECTIVE_WORDS = [
    "record_param_comms", "nccl:", "gloo:", "c10d::", "_c10d_functional::", "mpi:",
    "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall",
]  # fmt: skip
