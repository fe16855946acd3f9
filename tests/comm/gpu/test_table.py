import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fastverify.comm.cuda.launch import Launch, Protocol
from fastverify.comm.gpu.key import (
    hash_sources,
    read_driver_version,
    read_environment,
    read_setting_files,
    read_software,
)
from fastverify.comm.gpu.table import NORM, Row, Table, read_table, table_path, write_table
from fastverify.errors import ConfigError

LAUNCH = Launch(Protocol.SENTINEL, 64, 256, units=2, pause_ns=100)
TABLE = Table(
    (
        Row("push", LAUNCH, "all_reduce", 4096, "bfloat16", "contract", latency_us=2.5),
        Row("nccl", None, NORM, 14336, "bfloat16", "rounded", 14336, True, False, 11.25, 0.5, remark="wide spread"),
        Row("vllm", None, "all_gather", 4096, "bfloat16", "none", reason='it said "no"'),
    ),
    {"mscclpp": "the package mscclpp cannot be imported"},
    measured_s=3.5,
)
KEY = {"world_size": 2, "ranks": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = table_path(KEY, tmp_path)
    assert read_table(path, KEY) is None, "nothing is kept yet, which is no warning"
    write_table(path, KEY, TABLE)
    assert read_table(path, KEY) == TABLE
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no unfinished file stays"
    assert json.loads(path.read_text())["table"]["rows"][0]["launch"]["protocol"] == "SENTINEL"


def test_another_key_is_another_file(tmp_path: Path) -> None:
    other = KEY | {"world_size": 4}
    assert table_path(KEY, tmp_path) != table_path(other, tmp_path)
    assert table_path(KEY, tmp_path) == table_path(dict(reversed(KEY.items())), tmp_path), "order says nothing"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("}", "", "JSON"),
        ('"schema_version": 2', '"schema_version": 1', "schema_version must be 2, got 1"),
        ("NVIDIA H200", "NVIDIA H100", "this machine"),
        ('"SENTINEL"', '"SENTRY"', "SENTRY"),
        ('"op": "all_reduce"', '"op": "all_sum"', "all_sum"),
        ('"blocks": 64', '"blocks": 0', "blocks"),
        ('"backend": "vllm", ', "", "backend"),
        ("11.25", '"fast"', "fast"),
        ('"accuracy": "rounded"', '"accuracy": "fine"', "fine"),
    ],
)
def test_a_broken_or_foreign_file_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str, reason: str
) -> None:
    path = table_path(KEY, tmp_path)
    write_table(path, KEY, TABLE)
    broken = path.read_text().replace(old, new, 1)
    assert broken != path.read_text()
    path.write_text(broken)
    with caplog.at_level(logging.WARNING):
        assert read_table(path, KEY) is None
    assert "measured anew" in caplog.text
    assert reason in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "all-reduce").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        write_table(table_path(KEY, tmp_path), KEY, TABLE)
        assert read_table(table_path(KEY, tmp_path), KEY) is None
    assert "not kept" in caplog.text
    assert "cannot be read" in caplog.text


def test_the_text_that_ranks_hand_on_is_checked_too() -> None:
    assert Table.from_json(TABLE.to_json()) == TABLE
    with pytest.raises(ConfigError, match="as fastverify writes it"):
        Table.from_json("[]")
    with pytest.raises(ConfigError, match="backend"):
        Table.from_json(replace(TABLE, rows=()).to_json().replace("[\n\n]", '[{"launch": null}]'))


def test_the_key_holds_what_may_change_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("NCCL_ALGO", "Tree"), ("NCCL_P2P_DISABLE", "1"), ("NCCL_DEBUG", "INFO"), ("HOME", "/nowhere")):
        monkeypatch.setenv(name, value)
    environment = read_environment()
    assert (environment["NCCL_ALGO"], environment["NCCL_P2P_DISABLE"]) == ("Tree", "1")
    assert not {"NCCL_DEBUG", "HOME"} & set(environment)
    assert read_software()["versions"]["fastverify"] != "unknown"
    assert len(hash_sources()) == 32
    settings = tmp_path / "nccl.conf"
    assert read_setting_files([settings]) == {}
    settings.write_text("NCCL_ALGO=Ring\n")
    before = read_setting_files([settings])
    settings.write_text("NCCL_ALGO=Tree\n")
    assert read_setting_files([settings]) != before
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n")
    assert read_driver_version(version) == "580.82.07"
    assert read_driver_version(tmp_path / "missing") == "unknown"


def test_a_setting_file_that_may_not_be_read_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One rank that raised here would leave the others waiting for it."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    path = tmp_path / "nccl.conf"
    path.write_text("NCCL_ALGO=Ring")
    assert read_setting_files([path])[str(path)] != "unknown"
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert read_setting_files([path]) == {str(path): "unknown"}
