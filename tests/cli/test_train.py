"""`fastverify train`: both verbs end with a model folder, and bad values are refused before any work."""

import json
from pathlib import Path

import pytest

from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run
from fastverify.model_config import read_eagle3_config, read_model_config
from tests.training.tiny import write_corpus

SMALL = ["--max-steps", "1", "--batch-size", "2", "--window", "32", "--device", "cpu", "--json"]


@pytest.mark.slow
def test_target_then_draft_then_fine_tuned_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_corpus(corpus, num_held_out=6)
    target, draft, tuned = (tmp_path / name for name in ("target", "draft", "tuned"))
    assert run(["train", "target", "--corpus", str(corpus), "--out", str(target), *SMALL]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1,
        "model": str(target / "model"),
        "log": str(target / "training_log.jsonl"),
    }
    sizes = read_model_config(target / "model")
    assert (sizes.hidden_size, sizes.num_layers, sizes.tie_word_embeddings) == (320, 8, True)
    common = ["--corpus", str(corpus), "--target", str(target / "model"), "--own-sequences", "4", *SMALL]
    assert run(["train", "draft", "--out", str(draft), *common]) == ExitCode.OK
    tuning = ["--init-from", str(draft / "model"), "--out", str(tuned)]
    assert run(["train", "draft", *tuning, *common]) == ExitCode.OK
    assert read_eagle3_config(tuned / "model").capture_layers == (2, 5, 7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["target", "--out", "x", "--corpus", "nowhere"], "build_corpus.py"),
        (["draft", "--out", "x", "--target", "nowhere"], "config.json"),
        (["draft", "--out", "x", "--target", "y", "--capture-layers", "a,b"], "2,5,7"),
        (["target", "--out", "x", "--minutes", "0"], "minutes"),
    ],
)
def test_bad_values_are_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", *arguments]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
