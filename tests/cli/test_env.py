import json
from pathlib import Path

from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run


def test_env_prints_tables_and_what_is_missing(capsys):
    assert run(["env"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "hardware.num_cores" in shown
    assert "not read" in shown


def test_env_writes_a_document_for_diagnose(capsys, tmp_path: Path):
    file = tmp_path / "env.json"
    assert run(["env", "--json", "--output", str(file)]) == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)
    written = json.loads(file.read_text())
    assert printed["kind"] == written["kind"] == "fastverify env"
    assert printed["redacted"] is True


def test_env_with_an_output_that_cannot_be_written(capsys, tmp_path: Path):
    assert run(["env", "--output", str(tmp_path / "no" / "env.json")]) == ExitCode.BAD_INPUT
    assert "--output" in capsys.readouterr().err
