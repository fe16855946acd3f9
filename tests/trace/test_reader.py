"""The reader against the json module on real files, and the scanner against itself on every way to cut the text."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.errors import TraceFormatError
from fastverify.trace._scan import Scanner
from fastverify.trace.dialects import CATEGORIES, COLLECTIVE_WORDS
from fastverify.trace.events import CollectiveOwner, TraceData
from fastverify.trace.facts import read_info
from fastverify.trace.reader import read_trace
from tests.trace import plain_reader
from tests.trace.golden import CUTS, WHOLE
from tests.trace.kineto_text import NUM_KERNELS, make_events, make_text

REAL = [*sorted(CUTS.rglob("*.gz")), *sorted(WHOLE.glob("v100-dlrm*.gz")), *sorted(WHOLE.glob("*mi300*.gz"))]


def rows_of(trace: TraceData, table: Any) -> list[tuple[Any, ...]]:
    columns = []
    for name, column in vars(table).items():
        values = column.tolist()
        words: list[Any] = trace.names if name == "name" else trace.threads
        columns.append([words[value] for value in values] if name in ("name", "thread") else values)
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_same_rows_as_the_json_module(path: Path) -> None:
    (trace,) = read_trace(path)
    events = plain_reader.load_events(path)
    assert rows_of(trace, trace.kernels) == plain_reader.kernel_rows(events)
    assert rows_of(trace, trace.launches) == plain_reader.launch_rows(events)
    assert rows_of(trace, trace.annotations) == plain_reader.annotation_rows(events)
    args = trace.collective_args
    owners = {CollectiveOwner.KERNEL: trace.kernels, CollectiveOwner.CPU_OP: trace.cpu_ops}
    starts = [int(owners[CollectiveOwner(o)].ts_ns[r]) for o, r in zip(args.owner, args.row, strict=True)]
    ops = [trace.names[op] for op in args.op]
    numbers = (args.group_size, args.in_elements, args.out_elements, args.sequence)
    rows = sorted(zip(starts, ops, *(column.tolist() for column in numbers), strict=True))
    assert rows == plain_reader.collective_rows(events)


def scan(text: bytes, cuts: list[int]) -> Any:
    scanner = Scanner(CATEGORIES, COLLECTIVE_WORDS)
    places = [0, *sorted(cuts), len(text)]
    for begin, end in zip(places, places[1:], strict=False):
        scanner.feed(text[begin:end])
    scanner.finish()
    parts = [scanner.take_rank(index) for index in range(scanner.num_ranks)]
    return parts, scanner.names(), scanner.threads(), scanner.facts(), scanner.faults()


DAMAGED = (
    make_text().replace(b"nvjet", b"nv\xffj\x01et", 3).replace(b"}},\n", b"}}\n", 2).replace(b'"tid": 7', b'tid": 7', 1)
)


@pytest.mark.parametrize("text", [make_text(), DAMAGED, DAMAGED[:-700], DAMAGED[900:] + make_text()])
@given(data=st.data())
def test_pieces_do_not_matter(text: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    assert scan(text, cuts) == scan(text, [])


def test_byte_by_byte() -> None:
    text = make_text()
    assert scan(text, list(range(len(text)))) == scan(text, [])


@pytest.mark.parametrize(
    ("us", "ns"),
    [("12", 12_000), ("12.5", 12_500), ("12.0005", 12_001), ("5103283976761.777", 5_103_283_976_761_777),
     ("1669783687464181", 1_669_783_687_464_181_000), ("1.5e3", 1_500_000), ('"7.25"', 7_250), ("-3", -3_000)],
)  # fmt: skip
def test_times_are_whole_nanoseconds(us: str, ns: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'[{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {us}, "dur": 1}}]')
    assert read_trace(path)[0].kernels.ts_ns.tolist() == [ns]


def test_facts_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(make_text())
    info = read_trace(path)[0].info
    assert (info.rank, info.world_size, info.rank_source) == (3, 8, "distributedInfo")
    assert info.device_names == ("NVIDIA H200",)
    assert info.process_label == "VLLM::Worker_TP3"
    assert info.base_time_ns == 1_790_000_000_000_000_000
    assert info.metadata["traceName"] == "/tmp/rank3.json"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("1790857026-TP-5.trace.json.gz", 5),
        ("1790857026-TP-2-DP-0-PP-0-EP-0-DECODE.trace.json.gz", 2),
        ("dp0_pp0_tp3_dcp0_ep0_rank7.1790.pt.trace.json.gz", 3),
        ("rank4.1790857026.pt.trace.json.gz", 4),
        ("trace-rank-6.json", 6),
        ("worker1_step_12.1694128201556.pt.trace.json", 1),
        ("some.json", 0),
    ],
)
def test_rank_from_the_name(name: str, rank: int) -> None:
    info = read_info(name, 0, "", [])
    assert (info.rank, info.rank_source) == (rank, "default" if name == "some.json" else "file name")


def test_gzip_members_and_progress(tmp_path: Path) -> None:
    text = make_text(events=make_events(num_kernels=3000))
    path = tmp_path / "trace.bin"
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + b"\0" * 512)
    steps: list[tuple[int, int | None]] = []
    (trace,) = read_trace(path, lambda done, total: steps.append((done, total)))
    assert (len(trace.kernels), trace.health.rows) == (3000, [])
    assert steps[-1] == (path.stat().st_size, path.stat().st_size)


def test_text_behind_the_gzip_stream(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(make_text()) + b"saved by me")
    (trace,) = read_trace(path)
    assert trace.health.count("text behind the end of the gzip stream") == 1
    assert len(trace.kernels) == NUM_KERNELS


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = SimpleNamespace(buffer=io.BytesIO(gzip.compress(make_text())))
    monkeypatch.setattr(sys, "stdin", pipe)
    (trace,) = read_trace("-")
    assert (trace.info.source, len(trace.kernels)) == ("standard input", NUM_KERNELS)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"SQLite format 3\0" + bytes(100), "Nsight Systems"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
        (b"\n\x8b\x02\x08\x01" + bytes(300), "Perfetto"),
        (gzip.compress(b"\n\x8b\x02\x08\x01" + bytes(300)), "Perfetto"),
        (b"", "empty"),
        (b"   \n", "no event"),
        (b"hello world, this is no trace at all, but it is long enough to be looked at in full", "no event"),
        (b"ts,dur\n1,2\n", "no event"),
    ],
)
def test_other_files_are_refused_with_what_to_do(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=what):
        read_trace(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="check the path"):
        read_trace(tmp_path / "nowhere.json")
