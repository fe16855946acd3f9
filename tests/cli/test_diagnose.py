"""`fastverify diagnose` from the command line: documents, exit codes, inputs that were not understood."""

import json
from pathlib import Path

import pytest

from fastverify.cli.main import run

STORY = Path(__file__).parent.parent / "data" / "story_facts.yaml"
NAMES = ("speedup", "break_even_accept_length", "cycle_ms", "plain_ms", "findings", "unknown")


def test_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(STORY), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert set(NAMES) <= set(document)
    assert round(document["break_even_accept_length"], 2) == 2.73
    assert {"rule", "confidence", "evidence", "next"} <= set(document["findings"][0])
    assert document["inputs"]["unknown_files"] == []
    assert document["plan"]["experiments"]


def test_exit_code_follows_the_threshold(tmp_path: Path) -> None:
    facts = tmp_path / "facts.yaml"
    facts.write_text("plain_tok_s: 80\nspeculative_tok_s: 100\naccept_length: 1.6\nworkload: random\n")
    assert run(["diagnose", str(facts)]) == 0
    assert run(["diagnose", str(facts), "--fail-on", "medium"]) == 1
    assert run(["diagnose", str(STORY), "--fail-on", "never"]) == 0


def test_text_begins_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    run(["diagnose", str(STORY)])
    assert capsys.readouterr().out.startswith("Speculation loses 27 %")


def test_log_and_command_give_the_same_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cmd.sh").write_text(
        "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --speculative-algorithm EAGLE3 "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n"
    )
    line = (
        "[2026-11-20 08:01:0{} TP0] Decode batch, #running-req: 1, #token: 812, token usage: 0.00, accept len: 2.00, "
        "accept rate: 0.33, cuda graph: True, gen throughput (token/s): 60.00, #queue-req: 0\n"
    )
    (tmp_path / "server.log").write_text("".join(line.format(second) for second in range(5)))
    (tmp_path / "facts.yaml").write_text("plain_tok_s: 82\nhardware: 8x RTX PRO 6000 Blackwell\n")
    run(["diagnose", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["speedup"] == pytest.approx(60 / 82)
    assert document["cycle_ms"] == pytest.approx(33.3, abs=0.1)
    assert document["arms"][0]["verify_message_bytes"] == 57344


def test_unknown_files_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see\n")
    (tmp_path / "facts.yaml").write_text("plain_tok_s: 82\n")
    run(["diagnose", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [Path(file["source"]).name for file in document["inputs"]["unknown_files"]] == ["notes.txt"]
    assert {"speculative_tok_s", "accept_length"} <= {unknown["name"] for unknown in document["unknown"]}


@pytest.mark.parametrize("arguments", [[], ["/does/not/exist"], [str(STORY), "--json", "--html"]])
def test_bad_input_is_exit_code_3(arguments: list[str]) -> None:
    assert run(["diagnose", *arguments]) == 3


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "--schema"]) == 0
    assert "accept_length" in json.loads(capsys.readouterr().out)["properties"]
