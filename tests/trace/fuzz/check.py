"""What must hold for any file, however broken: an answer or a TraceFormatError, in time, with sound tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fastverify.errors import TraceFormatError
from fastverify.trace.breakdown import profile_of
from fastverify.trace.events import TraceData
from fastverify.trace.output.markdown import render_markdown
from fastverify.trace.reader import read_trace

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
SMALL_FILES = ("sglang-mi300-decode", "v100-dlrm-8ranks-rank0", "vllm-mi300-piecewise", "sglang-h200-tp1-plain")


def check_file(path: Path) -> None:
    """Read, look at every table, and profile. Raises AssertionError, or whatever was wrongly raised."""
    try:
        traces = read_trace(path)
    except TraceFormatError:
        return
    assert traces
    for trace in traces:
        check_tables(trace)
    profile = profile_of(traces)
    json.dumps(profile.model_dump(mode="json"), allow_nan=False)
    assert profile.verdict in render_markdown(profile)


def check_tables(trace: TraceData) -> None:
    tables = (trace.kernels, trace.launches, trace.annotations, trace.cpu_ops)
    for table in tables:
        assert (np.diff(table.ts_ns) >= 0).all()
        assert len(table) == 0 or 0 <= table.name.min() <= table.name.max() < len(trace.names)
    for table in tables[1:]:
        assert len(table) == 0 or table.thread.max() < len(trace.threads)
    assert (trace.kernels.dur_ns >= 0).all()
    args = trace.collective_args
    lengths = np.where(args.owner == 0, len(trace.kernels), len(trace.cpu_ops))
    assert ((args.row >= 0) & (args.row < lengths)).all()
    assert all(row.count > 0 for row in trace.health.rows)
