import json
from pathlib import Path

import pytest

from fastverify.cli import bench
from fastverify.cli.bench_request import Request
from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import app, run
from fastverify.errors import ConfigError

if not any(group.name == "bench" for group in app.registered_groups):
    app.add_typer(bench.app, name="bench")

ROW_KEYS = {
    "backend", "num_bytes", "world_size", "dtype", "fused", "median_us", "iqr_us", "correct", "reason",
}  # fmt: skip


def test_sizes_of_a_model_are_its_plain_and_verify_pass(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 320,
                "num_hidden_layers": 8,
                "num_attention_heads": 10,
                "num_key_value_heads": 2,
                "intermediate_size": 864,
                "vocab_size": 4096,
            }
        )
    )
    assert bench.choose_sizes(request(model=config, batch=2), "bfloat16") == ((1280, 6400), 320)
    with pytest.raises(ConfigError, match="--model works out the sizes"):
        request("8KB", model=config)
    with pytest.raises(ConfigError, match="--model has a hidden size"):
        request(model=config, hidden_size=320)
    assert bench.choose_sizes(request("8KB, 4096,8192"), "float32") == ((4096, 8192), 0)


def request(sizes: str = "", model: Path | None = None, batch: int = 1, hidden_size: int = 0) -> Request:
    return Request(sizes, model, batch, 4, None, "", 5, "", hidden_size)


def test_a_hidden_size_gives_rows_of_1_to_64_or_divides_the_sizes() -> None:
    rows = tuple(count * 4096 * 2 for count in (1, 2, 4, 8, 16, 32, 64))
    assert bench.choose_sizes(request(hidden_size=4096), "bfloat16") == (rows, 4096)
    assert bench.choose_sizes(request("56KB", hidden_size=4096), "bfloat16") == ((57344,), 4096)
    with pytest.raises(ConfigError, match="whole rows of --hidden-size, 14336 bytes, got 8KB"):
        bench.choose_sizes(request("8KB", hidden_size=7168), "bfloat16")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sizes", "large"],
        ["--sizes", "7"],
        ["--dtype", "int4"],
        ["--plot", "curve.png"],
        ["--world-size", "1"],
        ["--model", "no-such-folder/config.json"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_3(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "all-reduce", *arguments]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fastverify: ")


@pytest.mark.ranks
def test_json_has_the_promised_names_and_nothing_else_on_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["bench", "all-reduce", "--sizes", "8KB", "--iterations", "5", "--json"]
    assert run([*arguments, "--plot", str(tmp_path / "curve.html")]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert {"command", "machine", "rows"} <= set(document)
    assert all(set(row) == ROW_KEYS for row in document["rows"])
    page = (tmp_path / "curve.html").read_text()
    assert "shm + fused norm" in page
    assert "http" not in page, "the page must work without network"


def test_a_wrong_sum_is_a_finding_and_stands_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastverify.comm.bench.cpu import BenchResult, BenchRow

    rows = (
        BenchRow("gloo", 4096, 2, "float32", False, 300.0, 9.0, True),
        BenchRow("gloo", 4096, 2, "float32", True, 400.0, 9.0, True),
        BenchRow("shm", 4096, 2, "float32", False, 2.0, 1.0, False),
        BenchRow("shm", 4096, 2, "float32", True, reason="not here"),
    )
    setups = {"gloo": "asked for", "shm": "not here"}
    monkeypatch.setattr(bench, "run_with_progress", lambda config: BenchResult(rows, setups))
    assert run(["bench", "all-reduce", "--sizes", "4096"]) == ExitCode.FINDING
    table = capsys.readouterr().out
    assert "2.0 (1.0) WRONG" in table
    assert "did not run" in table
    assert "shm: not here" in table
    assert "300.0 (9.0) ok" in table


@pytest.mark.parametrize("name", ["page.txt", "folder.html", "gone/page.html"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr(bench, "run_with_progress", lambda config: pytest.fail("it measures"))
    assert run(["bench", "all-reduce", "--device", "cpu", "--plot", str(tmp_path / name)]) == ExitCode.BAD_INPUT
    assert "--plot writes" in capsys.readouterr().err


def test_a_group_without_a_verb_says_its_help_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench"]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert "all-reduce" in captured.out
    assert captured.err == ""


def test_a_run_in_which_nothing_ran_is_not_fine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastverify.comm.bench.cpu import BenchResult, BenchRow

    rows = tuple(BenchRow("shm", 4096, 2, "float32", fused, reason="not here") for fused in (False, True))
    monkeypatch.setattr(bench, "run_with_progress", lambda config: BenchResult(rows, {"shm": "not here"}))
    assert run(["bench", "all-reduce", "--backends", "shm", "--sizes", "4096"]) == ExitCode.ENVIRONMENT
    captured = capsys.readouterr()
    assert "shm: not here" in captured.out
    assert "nothing that was asked for ran" in captured.err
