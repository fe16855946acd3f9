import inspect
import re
import socket
from dataclasses import fields
from pathlib import Path

import pytest

from fastverify.cli import engine_flags, serve
from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run
from fastverify.engine.config import EngineConfig
from tests.servers.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folders = write_tiny_model(tmp_path_factory.mktemp("model"))
    return ["--model", folders["model"], "--draft", folders["draft"]]


def test_every_setting_has_its_flag_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [one.name for one in fields(EngineConfig)]
    assert sorted(engine_flags.HELP) == sorted(names)
    assert set(names) <= set(inspect.signature(serve.serve).parameters)
    seen = []
    monkeypatch.setattr(
        "fastverify.engine.http.serve.serve", lambda config, http, on_listening: seen.append((config, http))
    )
    assert run(["serve", "--port", "0"]) == ExitCode.OK
    config, http = seen[0]
    assert config == EngineConfig()
    assert (http.host, http.port) == ("127.0.0.1", 0)


def test_flags_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("fastverify.engine.http.serve.serve", lambda config, http, on_listening: seen.append(config))
    flags = ["--no-fuse-rmsnorm", "--draft-shape", "tree", "--top-k", "2", "--num-proposed-drafts", "5"]
    assert run(["serve", "--drafter", "ngram", "--tp-size", "4", *flags]) == ExitCode.OK
    expected = EngineConfig(
        drafter="ngram", tp_size=4, fuse_rmsnorm=False, draft_shape="tree", top_k=2, num_proposed_drafts=5
    )
    assert seen == [expected]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tp-size", "two"], "Invalid value for '--tp-size'"),
        (["--tp-size", "0"], "tp_size must be at least 1, got 0"),
        (["--drafter", "eagle9"], "drafter must be one of eagle3, ngram, none, got 'eagle9'"),
        (["--num-proposed-drafts", "many"], "must be a whole number or 'auto', got 'many'"),
        (["--port", "99999"], "port must be in 0..65535"),
        (["--model", "/no/model", "--drafter", "none"], "found none in /no/model"),
        (["--no-such-flag"], "No such option"),
    ],
)
def test_mistakes_are_one_line_and_bad_input(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--port", "0", *flags]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_taken_port_is_an_environment_error_before_any_rank_starts(
    tiny: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastverify.engine.http.serve.Engine", None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        code = run(["serve", "--port", str(other.getsockname()[1]), *tiny])
    assert code == ExitCode.ENVIRONMENT
    assert re.match(r"fastverify: .* cannot be used: Address already in use\. Use --port 0", capsys.readouterr().err)


@pytest.mark.server
@pytest.mark.ranks
def test_damaged_weights_are_an_error_without_a_traceback(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in Path(tiny[1]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").unlink()
    flags = ["--port", "0", "--tp-size", "1", "--model", str(tmp_path), "--drafter", "none"]
    assert run(["serve", *flags]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert "safetensors" in captured.err
