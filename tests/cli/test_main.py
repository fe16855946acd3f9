import pytest

from fastverify import env
from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run
from fastverify.errors import ConfigError


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
    with pytest.raises(ConfigError, match="above 0, got 'soon'"):
        env.read_positive_float("FASTVERIFY_COMM_TIMEOUT_S")
