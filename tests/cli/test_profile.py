import json
from pathlib import Path

import pytest

from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run

CUTS = Path(__file__).resolve().parents[1] / "data" / "traces"
EAGLE3, PLAIN = str(CUTS / "vllm-h200-eagle3"), str(CUTS / "vllm-h200-plain")


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["profile", *arguments, "--json"]) == ExitCode.OK
    return json.loads(capsys.readouterr().out)


def test_json_names_are_the_promised_ones(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, EAGLE3)
    assert found["schema_version"] == 1
    assert {"totals", "passes", "health", "ranks"} <= set(found)
    assert {
        "span_us", "busy_us", "compute_us", "communication_us", "exposed_communication_us", "idle_us",
        "num_collectives",
    } <= set(found["totals"])  # fmt: skip
    verify = next(row for row in found["passes"] if row["kind"] == "verify")
    assert (verify["batch"], verify["rows"], verify["count"], verify["all_reduces_per_pass"]) == (1, 4, 3, 65)
    assert {"collectives_per_pass", "wall_us", "exposed_communication_us", "backends"} <= set(verify)
    assert [row["rank"] for row in found["ranks"]] == [0, 1]


def test_the_table_begins_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", EAGLE3]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("A verify pass (batch 1, 4 rows) takes")
    assert any("exposed communication" in line for line in lines)


def test_markdown_and_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["profile", EAGLE3, "--markdown", "--html", str(page)]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("**A verify pass")
    assert page.read_text().startswith("<!doctype html>")


def test_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, EAGLE3, "--against", PLAIN)
    assert found["matched"][0]["kind"] == "verify"
    assert run(["profile", EAGLE3, "--against", PLAIN]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("plain, batch 1, 1 row -> verify, batch 1, 4 rows")


def test_a_model_gives_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = document(capsys, EAGLE3, "--model", str(path))
    verify = next(row for row in found["passes"] if row["kind"] == "verify")
    assert verify["collectives"][0]["num_bytes"] == 4 * 4096 * 2


def test_a_file_that_is_none_is_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["profile", str(tmp_path / "nothing.json")]) == ExitCode.BAD_INPUT
    assert "must exist" in capsys.readouterr().err
    assert run(["profile", EAGLE3, "--json", "--markdown"]) == ExitCode.BAD_INPUT
