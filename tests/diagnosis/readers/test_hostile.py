"""Cut, damaged, huge and hostile texts: every reader answers or says why not, in time that grows with the text."""

import contextlib
import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastverify.diagnosis.collect import collect, collect_documents
from fastverify.diagnosis.readers import document as document_module
from fastverify.diagnosis.readers.document import document_of, read_document
from fastverify.diagnosis.readers.python_text import literal, settings_after
from fastverify.diagnosis.sniff import JSON_READERS, TEXT_READERS
from fastverify.errors import ConfigError
from tests.diagnosis.readers import texts

ALL_TEXTS = [value for name, value in vars(texts).items() if name.isupper() and name != "PCIE_GATE"]


@pytest.mark.parametrize("text", ALL_TEXTS, ids=range(len(ALL_TEXTS)))
def test_every_cut_of_a_text_is_read_or_listed(text):
    for end in range(0, len(text), max(1, len(text) // 40)):
        collected = collect_documents([document_of(text[:end], "cut")])
        assert collected.kinds or collected.unknown


def test_damaged_bytes_never_stop_a_reading():
    source = random.Random(7)
    whole = "\n".join(ALL_TEXTS).encode()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(30):
            data[source.randrange(len(data))] = source.choice(b"\x01\xff{}[](),=:'\"\\ \n0-")
        collect_documents([document_of(bytes(data), "damaged")])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "tp_size",
                        "version",
                        "internal_states",
                        "arms",
                        "requested_settings",
                        "rows",
                        "num_bytes",
                        "architectures",
                        "hidden_size",
                        "output_throughput",
                        "mean_ttft_ms",
                        "acc_length",
                        "step_time",
                        "benchmarks",
                        "metrics",
                        "output_token_throughput",
                        "facts",
                        "tools",
                        "unread",
                        "kind",
                        "batch_size",
                        "step_time_dict",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_json_of_the_right_names_and_the_wrong_values(value):
    document = document_of(json.dumps(value), "odd.json")
    for read in JSON_READERS:
        read(document)
    # JSON with a name of the facts file is one, and then its wrong value is an error.
    with contextlib.suppress(ConfigError):
        collect_documents([document])


@pytest.mark.parametrize(
    "piece",
    [
        "(" * 1000,
        "Decode batch, " * 100,
        "a=" * 500,
        "'" * 999,
        "GPU0 " * 200,
        "{" * 999,
        "--x=" * 300,
        "\x1b[" * 400,
        "export NCCL_A=" * 50,
        "BOOT_IMAGE=iommu=" * 50,
        "accept len: 1.",
        "vllm serve 'x " * 40,
        "0" * 1500,
        "/a" * 700,
    ],
)
def test_time_grows_with_the_text_only(piece):
    marker = "Decode batch, server_args=({ vllm serve SpecDecoding metrics: Serving Benchmark Result ACSCtl: PyTorch "
    text = (marker + piece + "\n") * 200
    start = time.perf_counter()
    for read in TEXT_READERS:
        read(document_of(text, "x"))
    assert time.perf_counter() - start < 3.0


def test_literals_too_deep_or_too_long_stay_text():
    deep = "[" * 5000
    assert literal(deep) == deep
    assert literal("9" * 30_000) == "9" * 30_000
    assert settings_after("args=f(a=1, b='x, y', c=<E: 'z'>, d=[1, 2], e", "args=") == {
        "a": 1,
        "b": "x, y",
        "c": "<E: 'z'>",
        "d": [1, 2],
    }


def test_numbers_beyond_a_float_are_text_and_odd_literals_warn_nobody(recwarn: pytest.WarningsRecorder):
    huge = "9" * 400
    log = f"server_args={{'tp_size': 8, 'port': {huge}, 'seed': 8or9}}\nDecode batch, #running-req: {huge}, x: 1"
    collected = collect_documents([document_of(log, "log")])
    assert collected.facts.tp == 8
    assert collected.facts.launch.resolved["seed"] == "8or9"
    assert not recwarn.list
    for value in (huge, "NaN", "+Inf", "1e308"):
        page = f'vllm:spec_decode_num_drafts_total{{a="b"}} {value}\nvllm:spec_decode_num_draft_tokens_total 5\n'
        assert collect_documents([document_of(page, "page")]).facts.accept_length is None


def test_a_huge_file_keeps_its_ends_and_its_line_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(document_module, "MAX_BYTES", 4000)
    monkeypatch.setattr(document_module, "_CHUNK_BYTES", 1000)
    file = tmp_path / "big.log"
    file.write_text("".join(f"line {number}\n" for number in range(1, 5001)))
    document = read_document(file)
    assert document.lines[0] == (1, "line 1")
    assert document.lines[-1] == (5000, "line 5000")
    assert all(text == f"line {number}" for number, text in document.lines[:100] + document.lines[-100:])
    assert document.skipped_bytes > 0
    assert any("not read" in note for note in collect([file]).notes)


def test_encodings_colours_and_compression(tmp_path: Path):
    import gzip

    for name, data in {
        "utf16.txt": "vllm serve m -tp 4".encode("utf-16"),
        "bom.txt": b"\xef\xbb\xbfvllm serve m -tp 4",
        "colour.txt": b"\x1b[32mvllm serve m\x1b[0m -tp 4\r\n",
        "packed.gz": gzip.compress(b"vllm serve m -tp 4"),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert collect([tmp_path / name]).facts.tp == 4, name


def test_files_that_are_no_text_are_listed_with_a_reason(tmp_path: Path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0\0\0")
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08\0\0\0")
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "cut.json").write_text('{"output_throughput": 1,')
    (tmp_path / "note.md").write_text("Hello, it is slow.")
    (tmp_path / "pipe").symlink_to("/dev/zero")
    reasons = {Path(file.source).name: file.reason for file in collect([tmp_path]).unknown}
    assert set(reasons) == {"image.png", "cut.gz", "empty.log", "cut.json", "note.md", "pipe"}
    assert "NUL" in reasons["image.png"]
    assert "cut or damaged" in reasons["cut.json"]
    assert "regular" in reasons["pipe"]


def test_a_missing_path_is_an_error():
    with pytest.raises(ConfigError, match="does not exist"):
        collect(["/no/such/file"])
