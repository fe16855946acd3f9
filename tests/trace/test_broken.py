"""Every kind of broken file that public issues report: what is complete is answered, what is wrong is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fastverify.errors import TraceFormatError
from fastverify.trace.reader import read_trace
from tests.trace.golden import WHOLE
from tests.trace.kineto_text import ALL_REDUCE, HEADER, NUM_KERNELS, make_events, make_text, nth

KERNEL = b'"cat": "kernel"'


def replace_nth(text: bytes, old: bytes, new: bytes, n: int = 3) -> bytes:
    where = nth(text, old, n)
    return text[:where] + new + text[where + len(old) :]


def reordered(text: bytes) -> bytes:
    """As tools write it that load and dump the file: events first, keys sorted, no spaces."""
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()


def kernel_lines(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if KERNEL in line]


def spliced_in_an_event(text: bytes) -> bytes:
    """The text of one rank cut open by that of another, inside an event."""
    other = make_text({**HEADER, "distributedInfo": {"rank": 4, "world_size": 8}})
    where = nth(text, KERNEL, 5) + 5
    return text[:where] + other + text[where:]


def edit_kernel(change: Callable[[dict], object], n: int = 4) -> bytes:
    events = make_events()
    kernels = [event for event in events if event.get("cat") == "kernel"]
    change(kernels[n])
    return make_text(events=events)


TEXT = make_text()
ALL = NUM_KERNELS
# (what, text, kernels that are answered, fault that is named or None where the file is merely unusual)
CASES = [
    ("whole", TEXT, ALL, None),
    ("cut in a kernel", TEXT[: nth(TEXT, KERNEL, 7) + 40], 7, "truncated"),
    ("cut in a string", TEXT[: nth(TEXT, b'"nvjet', 4) + 6], 6, "truncated"),
    ("cut before the first event", TEXT[: TEXT.index(b"traceEvents") + 5], 0, "truncated"),
    ("cut between events", TEXT[: nth(TEXT, b"\n", 20)], None, "truncated"),
    ("inf", replace_nth(TEXT, b'"graph id": 0', b'"bandwidth": inf', 2), ALL, "number that is inf or nan"),
    ("-inf", replace_nth(TEXT, b'"graph id": 0', b'"bandwidth": -Infinity', 2), ALL, "number that is inf or nan"),
    ("nan", replace_nth(TEXT, b'"graph id": 0', b'"bandwidth": nan', 2), ALL, "number that is inf or nan"),
    ("nan as a duration", replace_nth(TEXT, b'"dur": 3.25', b'"dur": nan', 2), ALL - 1, "time that is no number"),
    ("control byte", replace_nth(TEXT, b"nvjet", b"nv\x01et"), ALL, "control character in text"),
    ("newline in a name", replace_nth(TEXT, b"nvjet", b"nv\net"), ALL, "control character in text"),
    ("bad UTF-8", replace_nth(TEXT, b"nvjet", b"nv\xff\xfet"), ALL, "bad UTF-8"),
    ("backslash", replace_nth(TEXT, b"aten::mm", rb"torch\cuda\_init"), ALL, "wrong escape in text"),
    ("unescaped quotes", replace_nth(TEXT, b"nvjet_sm90", b'lib("x")_y'), ALL, "quote or comma wrong inside an event"),
    ("quote lost from a key", replace_nth(TEXT, b'"tid": 7', b'tid": 7'), ALL, "quote or comma wrong inside an event"),
    ("comma lost inside", replace_nth(TEXT, b'83, "ts"', b'83 "ts"', 9), ALL, None),
    ("comma lost between", replace_nth(TEXT, b"}},\n", b"}}\n", 9), ALL, "comma missing"),
    ("comma at the end", replace_nth(TEXT, b"}\n]", b"},\n]", 0), ALL, "comma too many"),
    ("brace lost", replace_nth(TEXT, b"}},\n", b"},\n", 8), ALL, "brace missing"),
    ("bracket lost", replace_nth(TEXT, b"\n], ", b", ", 0), ALL, "bracket missing"),
    ("event of garbage", replace_nth(TEXT, b'"cat": "kernel"', b'@@@', 4), ALL - 1, "event that cannot be read"),
    ("list", b"[" + b",".join(kernel_lines(TEXT)).rstrip(b",") + b"]", ALL, "no header"),
    ("events without a list", b"\n".join(line.rstrip(b",") for line in kernel_lines(TEXT)), ALL, None),
    ("head cut off", TEXT[nth(TEXT, KERNEL, 2) :], ALL - 3, "text that is no event"),
    ("times as text", TEXT.replace(b'"ts": 5103283976066.123', b'"ts": "5103283976066.123"'), ALL, "time as text"),
    ("another key order", reordered(TEXT), ALL, None),
    ("two documents", TEXT + TEXT, 2 * ALL, "second document in the file"),
    ("document in an event", spliced_in_an_event(TEXT), 2 * ALL - 1, "document inside another one"),
    ("garbage behind", TEXT + b"done in 3 s\n", ALL, "text behind the end of the document"),
    ("byte order mark", b"\xef\xbb\xbf" + TEXT, ALL, None),
    ("header only", make_text(events=[]), 0, "no device work"),
    ("rank nowhere", make_text({"schemaVersion": 1}), ALL, "rank not in the file"),
    ("no times", edit_kernel(lambda kernel: kernel.update(ts=0, dur=0)), ALL - 1, "device work without a time"),
    ("negative duration", edit_kernel(lambda kernel: kernel.update(dur=-5)), ALL, "negative duration"),
    ("impossible duration", edit_kernel(lambda kernel: kernel.update(dur=3.4e6)), ALL, "impossible duration"),
    ("zero duration", edit_kernel(lambda kernel: kernel.update(dur=0)), ALL, "zero duration"),
    ("zero correlation", edit_kernel(lambda kernel: kernel["args"].update(correlation=0)), ALL,
     "kernel without its launch"),
    ("no args", edit_kernel(lambda kernel: kernel.pop("args")), ALL, "kernel without its launch"),
    ("no stream", edit_kernel(lambda kernel: kernel["args"].pop("stream")), ALL, None),
    ("kernel before its launch", edit_kernel(lambda kernel: kernel.update(ts=5_103_283_900_000)), ALL,
     "kernel before its launch"),
    ("unknown collective", edit_kernel(lambda kernel: kernel.update(name="ncclDevKernel_Generic_4")), ALL,
     "collective of unknown kind"),
    ("records lost", make_text({**HEADER, "WARNING": ["GPU buffer was full, 12 records dropped"]}), ALL,
     "profiler says that it lost records"),
    ("unknown category", edit_kernel(lambda kernel: kernel.update(cat="npu_kernel")), ALL - 1,
     "events of a category that is not read"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "num_kernels", "fault"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_complete_part_is_answered_and_the_fault_is_named(
    text: bytes, num_kernels: int | None, fault: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    traces = read_trace(path)
    if num_kernels is not None:
        assert sum(len(trace.kernels) for trace in traces) == num_kernels
    faults = {row.fault for trace in traces for row in trace.health.rows}
    assert (
        fault in faults if fault else faults <= {"no header", "launch without its kernel", "kernel without its launch"}
    )
    assert all(row.example for trace in traces for row in trace.health.rows)


def test_impossible_duration_ends_where_the_next_kernel_begins(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(edit_kernel(lambda kernel: kernel.update(dur=3.4e6)))
    kernels = read_trace(path)[0].kernels
    assert kernels.dur_ns[4] == kernels.ts_ns[5] - kernels.ts_ns[4]


def test_kernels_without_a_time_do_not_stretch_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(edit_kernel(lambda kernel: kernel.update(ts=0, dur=0)))
    kernels = read_trace(path)[0].kernels
    assert kernels.end_ns[-1] - kernels.ts_ns[0] < 1_000_000


def test_graph_replay_without_its_kernels_is_told_apart(tmp_path: Path) -> None:
    events = make_events()
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 83, "tid": 83, "ts": 5103283976500,
              "dur": 9, "args": {"correlation": 9999}}  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_bytes(make_text(events=[*events, launch]))
    health = read_trace(path)[0].health
    assert health.count("graph replay without its kernels") == 1
    assert health.count("launch without its kernel") == 0


def test_merged_ranks_stay_apart_though_their_ids_collide(tmp_path: Path) -> None:
    events = [
        event
        for rank in range(2)
        for event in make_events(pid=f"[TP{rank:02}-DP00-PP00-EP00] 83", device=f"[TP{rank:02}-DP00-PP00-EP00] 0")
    ]
    path = tmp_path / "merged-1.trace.json"
    path.write_bytes(make_text(events=events))
    traces = read_trace(path)
    assert [(trace.info.rank, trace.info.rank_source, len(trace.kernels)) for trace in traces] == [
        (0, "process label", NUM_KERNELS),
        (1, "process label", NUM_KERNELS),
    ]
    assert not any(trace.health.rows for trace in traces)


def test_spliced_ranks_keep_their_own_header(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(spliced_in_an_event(TEXT))
    assert sorted(trace.info.rank for trace in read_trace(path)) == [3, 4]


def test_legacy_exporter_names_the_side_in_the_process_id(tmp_path: Path) -> None:
    events = [
        {"name": "aten::add", "ph": "X", "ts": 10.5, "dur": 3, "tid": 1, "pid": "CPU functions", "args": {}},
        {"name": "add_kernel", "ph": "X", "ts": 12.5, "dur": 2, "tid": 7, "pid": "CUDA functions", "args": {}},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    kernels = read_trace(path)[0].kernels
    assert (kernels.ts_ns.tolist(), kernels.stream.tolist()) == ([12_500], [7])


def test_old_categories(tmp_path: Path) -> None:
    old = (
        TEXT.replace(b'"kernel"', b'"Kernel"')
        .replace(b'"cuda_runtime"', b'"Runtime"')
        .replace(b'"cpu_op"', b'"Operator"')
    )
    path = tmp_path / "trace.json"
    path.write_bytes(old)
    (trace,) = read_trace(path)
    assert (len(trace.kernels), len(trace.launches), trace.health.rows) == (NUM_KERNELS, NUM_KERNELS, [])


def test_cpu_only_file_keeps_all_operators(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(make_text(events=[event for event in make_events() if event.get("cat") == "cpu_op"]))
    (trace,) = read_trace(path)
    assert len(trace.cpu_ops) == NUM_KERNELS


@pytest.mark.parametrize("path", sorted((WHOLE / "broken").glob("*")), ids=lambda path: path.name)
def test_shared_broken_files(path: Path) -> None:
    if path.name.startswith("17_empty"):
        with pytest.raises(TraceFormatError, match="empty"):
            read_trace(path)
        return
    (trace,) = read_trace(path)
    healthy = path.name in ("00_ok.json", "23_no_step.json")
    assert (not trace.health.rows) == healthy
    if path.name in ("01_truncated.json", "02_truncated.json.gz"):
        assert trace.health.count("truncated") == 1
        assert len(trace.kernels) > 20
    elif path.name not in ("13_meta_only.json", "09_zero_ts_dur.json"):
        assert len(trace.kernels) == 40


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_truncated_gzip(share: float, tmp_path: Path) -> None:
    packed = gzip.compress(make_text(events=make_events(num_kernels=2000)))
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: int(len(packed) * share)])
    (trace,) = read_trace(path)
    assert trace.health.count("truncated gzip stream") == 1
    assert len(trace.kernels) > 2000 * (share - 0.2)
    assert trace.names[trace.kernels.name[2]] == ALL_REDUCE


@pytest.mark.parametrize(
    ("devices", "faults"), [(HEADER["deviceProperties"], {"no device work"}), ([], set())], ids=["GPU", "CPU"]
)
def test_no_device_work_is_a_fault_only_where_the_file_names_a_device(
    devices: list[dict], faults: set[str], tmp_path: Path
) -> None:
    operators = [event for event in make_events() if event.get("cat") == "cpu_op"]
    path = tmp_path / "trace.json"
    path.write_bytes(make_text({**HEADER, "deviceProperties": devices}, operators))
    [trace] = read_trace(path)
    assert len(trace.cpu_ops)
    assert {row.fault for row in trace.health.rows} == faults
