import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.generate import read_prompt
from fastverify.cli.main import run
from fastverify.errors import ConfigError
from tests.engine.test_tokenizer import byte_level_tokenizer
from tests.engine.tiny import HEAD, TARGET, write_models


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a tiny model with a tokenizer."""
    tokenizer = byte_level_tokenizer()
    size = tokenizer.vocab_size
    head = replace(HEAD, layer=replace(HEAD.layer, vocab_size=size), draft_vocab_size=size)
    models = write_models(tmp_path_factory.mktemp("text"), replace(TARGET, vocab_size=size), head)
    tokenizer._tokenizer.save(str(Path(models["model"]) / "tokenizer.json"))
    return ["--model", models["model"], "--draft", models["draft"], "--tp-size", "1", "--max-seq-len", "128"]


@pytest.mark.ranks
def test_text_goes_to_stdout_and_costs_to_stderr(flags: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "def the", "--max-tokens", "12", *flags]) == ExitCode.OK
    streamed, summary = capfd.readouterr()
    assert "12 tokens" in summary
    assert "verify_compute" in summary
    assert run(["generate", "def the", "--max-tokens", "12", "--json", "--plain", *flags]) == ExitCode.OK
    document = json.loads(capfd.readouterr().out)
    assert document["text"] + "\n" == streamed
    assert (document["finish_reason"], len(document["token_ids"])) == ("length", 12)
    assert {cycle["kind"] for cycle in document["cycles"]} == {"plain"}
    assert document["accept_length"] == 1.0


def test_a_prompt_comes_from_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("from a file", encoding="utf-8")
    assert read_prompt("", path) == "from a file"
    with pytest.raises(ConfigError, match="got both"):
        read_prompt("text", path)
    with pytest.raises(ConfigError, match="readable UTF-8"):
        read_prompt("", tmp_path / "missing.txt")
    monkeypatch.setattr("sys.stdin", io.StringIO("from a file"))
    assert read_prompt("", None) == "from a file"
    with pytest.raises(ConfigError, match="nothing to continue"):
        read_prompt("", None)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_prompt_that_is_no_utf8_is_bad_input(errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
    with pytest.raises(ConfigError, match="must be UTF-8"):
        read_prompt("", None)
    with pytest.raises(ConfigError, match="must be UTF-8"):
        read_prompt(b"caf\xe9".decode("utf-8", "surrogateescape"), None)


def test_a_folder_without_a_model_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "x", "--model", str(tmp_path), "--drafter", "none"]) == ExitCode.BAD_INPUT
    assert "found none in" in capsys.readouterr().err
