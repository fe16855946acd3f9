import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastverify.cli import bench_gpu
from fastverify.cli.bench_request import MAX_GPU_RANKS
from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.main import run
from fastverify.comm.bench import gpu_run
from fastverify.comm.bench.gpu_rows import DEFAULT_SIZES, GpuBenchConfig, GpuBenchResult, GpuBenchRow
from fastverify.comm.cuda.call import MAX_RANKS

ROW_KEYS = {
    "backend", "num_bytes", "world_size", "dtype", "fused", "median_us", "iqr_us", "correct", "reason",
    "mode", "setting", "launch", "num_calls",
}  # fmt: skip
KIMI = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 56,
    "num_key_value_heads": 8,
    "intermediate_size": 18432,
    "vocab_size": 163840,
}
TIMES_US = {"push": 2.0, "nccl": 12.0, "nccl:ll": 9.0}


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[GpuBenchConfig]:
    """Two GPUs that answer at once; what they were asked to measure."""
    asked: list[GpuBenchConfig] = []

    def measure(config: GpuBenchConfig) -> GpuBenchResult:
        asked.append(config)
        rows = [
            GpuBenchRow(
                backend=way.partition(":")[0],
                num_bytes=num_bytes,
                world_size=config.world_size,
                dtype=config.dtype,
                fused=fused,
                mode=mode,
                setting=("ll" if way == "nccl:ll" else "default") if way.startswith("nccl") else None,
                launch="ONE_SHOT LINES 16x256" if way == "push" else None,
                num_calls=50 if mode == "graph" else 1,
                median_us=us * (2 if fused else 1),
                iqr_us=0.25,
                correct=True,
            )
            for num_bytes in config.sizes
            for mode in config.modes
            for fused in (False, True)
            for way, us in TIMES_US.items()
        ]
        rows[0] = replace(rows[0], median_us=None, correct=None, reason="the inbox is smaller than that")
        rows.append(
            replace(rows[1], backend="vllm", setting=None, median_us=None, correct=None, reason="not installed")
        )
        setups = {"push": "one kernel; out of place", "vllm": "did not run: not installed"}
        return GpuBenchResult(tuple(rows), setups, 0.63, ("warm L2: all in the cache",))

    monkeypatch.setattr(gpu_run, "count_gpus", lambda: 2)
    monkeypatch.setattr(bench_gpu, "run_with_progress", measure)
    return asked


def test_two_gpus_are_measured_by_default(configs: list[GpuBenchConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "all-reduce"]) == ExitCode.OK
    (config,) = configs
    assert (config.world_size, config.dtype, config.modes, config.nccl_settings) == (
        2, "bfloat16", ("graph",), ("default",),
    )  # fmt: skip
    assert config.sizes == DEFAULT_SIZES
    assert {14336, 57344, 172032, 229376, 4096, 4 << 20} <= set(config.sizes)
    assert "nccl" in config.backends
    assert "auto" in config.backends


def test_the_table_says_how_it_was_measured_and_what_is_missing(
    configs: list[GpuBenchConfig], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_gpu.out, "_width", 160)
    assert run(["bench", "all-reduce", "--sizes", "8KB,56KB", "--mode", "both", "--cold-l2"]) == ExitCode.OK
    assert configs[0].modes == ("graph", "eager")
    page = capsys.readouterr().out
    text = " ".join(page.split())
    assert "sum, 2 ranks, bfloat16, in a CUDA graph of 50 calls, cold L2" in text
    assert "sum + residual + norm, 2 ranks, bfloat16, eager, one call at a time, cold L2" in text
    assert "vllm: did not run: not installed" in text
    assert "push, sum (graph) did not run at 8 KB: the inbox is smaller than that" in text
    assert "an empty kernel in a graph takes 0.63 us" in text
    first_table = page.partition("fastest")[0]
    assert "12.0 (0.2)" in first_table
    assert "vllm" not in first_table
    fastest_line = next(line for line in page.splitlines() if "fastest" in line)
    assert "nccl:ll" in fastest_line
    assert "push" in fastest_line


def test_json_has_the_promised_names_and_the_advice_for_a_model(
    configs: list[GpuBenchConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(KIMI))
    plot = tmp_path / "curves.html"
    command = ["bench", "all-reduce", "--model", str(model), "--k", "11", "--json", "--plot", str(plot)]
    assert run([*command, "--nccl-settings", "default,ll", "--backends", "push,nccl,vllm"]) == ExitCode.OK
    assert configs[0].sizes == (14336, 57344, 172032)
    assert configs[0].hidden_size == 7168
    document = json.loads(capsys.readouterr().out)
    assert all(set(row) == ROW_KEYS for row in document["rows"])
    advice = {(one["label"], one["fused"]): one for one in document["advice"]}
    verify = advice["verify pass of 12 tokens, batch 1", False]
    assert verify["way"] == "push"
    assert verify["saving_ms"] == pytest.approx(123 * 10 / 1000)
    assert {"gpus", "cpu"} <= set(document["machine"])
    page = plot.read_text()
    assert "nccl:ll" in page
    assert "verify pass of 12 tokens" in page
    assert "vllm did not run: not installed" in page
    assert "http" not in page, "the page must work without network"


def test_rows_of_a_hidden_size(configs: list[GpuBenchConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "all-reduce", "--hidden-size", "4096"]) == ExitCode.OK
    assert configs[-1].sizes == tuple(rows * 8192 for rows in (1, 2, 4, 8, 16, 32, 64))
    assert configs[-1].shape(14 * 8192) == (14, 4096), "not 8 rows of 7168"
    assert run(["bench", "all-reduce", "--hidden-size", "4096", "--sizes", "56KB"]) == ExitCode.OK
    assert configs[-1].shape(57344) == (7, 4096)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--hidden-size", "7168", "--sizes", "8KB"], "sizes are whole rows of 14336 bytes"),
        (["--device", "tpu"], "--device must be one of auto, cpu, cuda, got 'tpu'"),
        (["--backends", "push,nickel"], "--backends is one of push, push_two_shot,"),
        (["--nccl-settings", "fast"], "--nccl-settings is one of default, p2p_off, ll,"),
        (["--mode", "lazy"], "--mode must be one of graph, eager, both, got 'lazy'"),
        (["--virtual-ranks", "1"], "--virtual-ranks needs 2 to 8 ranks, got 1"),
        (["--virtual-ranks", "9"], "--virtual-ranks needs 2 to 8 ranks, got 9"),
        (["--virtual-ranks", "2", "--backends", "nccl"], "virtual ranks run push, push_two_shot, islands"),
        (["--virtual-ranks", "2", "--world-size", "4"], "--virtual-ranks is the world size, got 2"),
        (["--device", "cpu", "--virtual-ranks", "2"], "cannot go with --device cpu"),
        (["--device", "cpu", "--cold-l2", "--mode", "both"], "--mode, --cold-l2: for GPUs only"),
        (["--device", "cpu", "--backends", "nccl"], "backends are among gloo, shm"),
        (["--sizes", "7"], "whole elements of bfloat16"),
        (["--sizes", "large"], "--sizes:"),
    ],
)
def test_bad_input_is_one_line_that_lists_what_is_allowed(
    configs: list[GpuBenchConfig], arguments: list[str], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "all-reduce", *arguments]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fastverify: ")
    assert rule in " ".join(captured.err.split())
    assert configs == []


def test_one_gpu_needs_to_be_told_how(
    configs: list[GpuBenchConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "count_gpus", lambda: 1)
    assert run(["bench", "all-reduce", "--device", "cuda"]) == ExitCode.BAD_INPUT
    assert "--virtual-ranks 2" in capsys.readouterr().err
    assert run(["bench", "all-reduce", "--virtual-ranks", "4", "--sizes", "8KB"]) == ExitCode.OK
    assert (configs[-1].world_size, configs[-1].virtual) == (4, True)
    assert run(["bench", "all-reduce", "--device", "cuda", "--world-size", "2", "--sizes", "8KB"]) == ExitCode.OK
    assert configs[-1].world_size == 2


def test_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_run, "count_gpus", lambda: 0)
    assert run(["bench", "all-reduce", "--virtual-ranks", "2"]) == ExitCode.ENVIRONMENT
    assert "needs an NVIDIA GPU that torch sees" in capsys.readouterr().err


def test_virtual_ranks_are_as_many_as_our_kernels_take() -> None:
    assert MAX_GPU_RANKS == MAX_RANKS
