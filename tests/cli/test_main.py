import subprocess
import sys
from pathlib import Path

import pytest

from fastverify import env
from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run
from fastverify.errors import ConfigError
from fastverify.tuning.campaign import LEDGER_FILE
from fastverify.tuning.ledger import Ledger


@pytest.mark.parametrize("arguments", [["no-such-verb"], ["env-vars", "--no-such-flag"]])
def test_a_mistake_is_bad_input_without_a_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fastverify: ")


def test_no_verb_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == ExitCode.OK
    assert "env-vars" in capsys.readouterr().out


def test_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FASTVERIFY_TIMEOUT", "3")
    assert run(["env-vars"]) == ExitCode.BAD_INPUT
    assert "FASTVERIFY_TIMEOUT" in capsys.readouterr().err


def test_bad_value_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTVERIFY_COMM_TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match="above 0 and .*, got 'soon'.*Unset it to use 60"):
        env.read_positive_float("FASTVERIFY_COMM_TIMEOUT_S")


def test_a_refused_file_operation_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "no" / "such" / "page.html"
    monkeypatch.setattr("fastverify.cli.main.app", lambda **_: bad.write_text("x"))
    assert run([]) == ExitCode.ENVIRONMENT
    assert capsys.readouterr().err.startswith("fastverify: the system refused a file operation: No such file")


@pytest.mark.parametrize("verb", ["plan", "demo"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run([verb, "-o", str(tmp_path / "file" / "campaign")]) == ExitCode.BAD_INPUT
    assert "cannot be made: Not a directory" in capsys.readouterr().err


def test_a_ledger_damaged_inside_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / LEDGER_FILE
    Ledger.open(path).close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert run(["status", str(tmp_path)]) == ExitCode.ENVIRONMENT
    assert capsys.readouterr().err.startswith("fastverify: ")


def test_prompts_that_are_no_utf8_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(b'{"text": "caf\xe9"}')
    assert run(["plan", "-o", str(tmp_path), "--prompts", str(prompts)]) == ExitCode.BAD_INPUT
    assert "prompts are a readable UTF-8 file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["inf", "nan", "1e300", "0", "-1"])
def test_a_time_limit_is_one_that_a_clock_can_hold(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTVERIFY_COMM_TIMEOUT_S", text)
    with pytest.raises(ConfigError, match="above 0 and at most"):
        env.read_positive_float("FASTVERIFY_COMM_TIMEOUT_S")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FASTVERIFY_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "expanduser", refuse)
    with pytest.raises(ConfigError, match="Set FASTVERIFY_CACHE_DIR"):
        env.cache_folder()


@pytest.mark.parametrize("command", ["env --json", "env-vars"])
def test_a_reader_that_left_is_no_finding(command: str) -> None:
    """Exit code 1 means that something was found. What `env-vars` prints is short enough to wait in a buffer."""
    code = f"""
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from fastverify.cli.main import run
os._exit(run({command.split()}))
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (ExitCode.ENVIRONMENT, "")


def test_closed_standard_output_is_one_line() -> None:
    command = ["sh", "-c", 'exec "$0" -m fastverify env --json >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr.startswith("fastverify: the system refused a file operation: standard output is closed")
