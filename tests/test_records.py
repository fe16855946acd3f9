import json
from pathlib import Path

import pytest

from fastverify import records
from fastverify.records import read_commit, write_record


def test_a_record_comes_back_and_holds_samples_on_one_line(tmp_path: Path) -> None:
    results = {"rows": [{"name": "a [ 1, 2 ]", "samples_us": [1.25, -2.0, 3e-05]}, {"sizes": [[1, 2], []]}]}
    path = tmp_path / "deep" / "record.json"
    write_record(path, question="q", settings={"n": [1, 2]}, results=results, machine={"gpu": "x"}, commit="abc")
    text = path.read_text()
    record = json.loads(text)
    assert record["results"] == results
    assert record["settings"] == {"n": [1, 2]}
    assert record["machine"]["gpu"] == "x"
    assert '"samples_us": [1.25, -2.0, 3e-05]' in text


def test_ten_thousand_samples_stay_small(tmp_path: Path) -> None:
    samples = [round(2.0 + index / 7, 3) for index in range(10_000)]
    write_record(tmp_path / "r.json", question="q", settings={}, results={"samples_us": samples})
    assert (tmp_path / "r.json").stat().st_size < 12 * len(samples)


def test_the_commit_is_given_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_git", lambda folder, *arguments: "")
    assert read_commit() == {"hash": "unknown", "dirty": False}
    assert read_commit("0a1b2c") == {"hash": "0a1b2c", "dirty": False}
    assert read_commit("0a1b2c-dirty") == {"hash": "0a1b2c", "dirty": True}
