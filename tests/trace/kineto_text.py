"""A small profiler file as text, of the shape that libkineto writes, to be damaged by tests."""

from __future__ import annotations

import json
from typing import Any

NUM_KERNELS = 12
HEADER: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "baseTimeNanoseconds": 1_790_000_000_000_000_000,
}
ALL_REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)"


def make_events(*, pid: int | str = 83, device: int | str = 0, num_kernels: int = NUM_KERNELS) -> list[dict[str, Any]]:
    """One annotation, then for every kernel an operator, a launch, an arrow and the kernel."""
    base = 5_103_283_976_000.0
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_1(4)", "pid": pid, "tid": 83,
         "ts": base, "dur": 900.5, "args": {"External id": 1}},
        {"ph": "M", "name": "process_name", "ts": base, "pid": pid, "tid": 0, "args": {"name": "VLLM::Worker_TP3"}},
    ]  # fmt: skip
    for index in range(num_kernels):
        start = round(base + 10 * index + 0.123, 3)
        links = {"External id": 100 + index, "correlation": 500 + index}
        name = ALL_REDUCE if index % 3 == 2 else "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": 83, "ts": start, "dur": 4,
             "args": {"External id": 100 + index, "Input Dims": [[4, 8], []], "note": "a \"quoted\" \\ word"}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": 83, "ts": start + 1,
             "dur": 2.5, "args": {"cbid": 211, **links}},
            {"ph": "s", "id": 500 + index, "pid": pid, "tid": 83, "ts": start + 1, "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": 7, "ts": start + 6, "dur": 3.25,
             "args": {"device": 0, "stream": 7, "graph id": 0, "grid": [8, 1, 1], **links}},
        ]  # fmt: skip
    return events


def make_text(header: dict[str, Any] | None = None, events: list[dict[str, Any]] | None = None) -> bytes:
    """The file: header, one event per line, name of the file last."""
    lines = ",\n".join(json.dumps(event) for event in (make_events() if events is None else events))
    head = json.dumps(HEADER if header is None else header)[:-1]
    separator = ", " if len(head) > 1 else ""
    return f'{head}{separator}"traceEvents": [\n{lines}\n], "traceName": "/tmp/rank3.json"}}\n'.encode()


def nth(text: bytes, what: bytes, n: int) -> int:
    """Where the n-th occurrence begins, counted from 0."""
    where = -1
    for _ in range(n + 1):
        where = text.index(what, where + 1)
    return where
