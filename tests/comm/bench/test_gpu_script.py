"""What benchmarks/bench_all_reduce_gpu.py says about measured rows."""

import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from fastverify.comm.bench.gpu_rows import DEFAULT_SIZES, GpuBenchConfig, GpuBenchRow
from fastverify.errors import ConfigError

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_all_reduce_gpu.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_all_reduce_gpu", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(backend: str, num_bytes: int, us: float, *, fused: bool = False, **changes: object) -> GpuBenchRow:
    made = GpuBenchRow(backend, num_bytes, 2, "bfloat16", fused, "graph", median_us=us, iqr_us=0.1, correct=True)
    return replace(made, **changes)


def test_targets_are_met_or_missed_by_the_backends_own_choice(script: ModuleType) -> None:
    rows = [
        row("push", 8192, 1.0, is_candidate=True),
        row("push", 8192, 2.9),
        row("push", 57_344, 3.0),
        row("push", 57_344, 4.1, fused=True),
        row("push", 229_376, 1.0, correct=False),
        row("nccl", 1 << 20, 1.0),
    ]
    assert script.judge_targets(rows, "nvlink") == [
        "target push 8 KB: 2.90 us, at most 2.8: MISSED",
        "target push 56 KB: 3.00 us, at most 3.1: met",
        "target push fused, 4 row(s), above plain: 1.10 us, at most 1: MISSED",
    ]
    assert script.judge_targets([row("host", 8192, 3.6)], "host") == ["target host 8 KB: 3.60 us, at most 3.6: met"]


def test_rivals_that_win_are_named(script: ModuleType) -> None:
    rows = [row("push", 8192, 2.0), row("nccl", 8192, 12.0), row("push", 1 << 20, 9.0), row("vllm", 1 << 20, 8.0)]
    assert script.judge_rivals(rows[:2]) == "ours is the fastest at every size and operation"
    assert script.judge_rivals(rows) == "another backend is faster at 1 MB sum graph: vllm 8.00, ours push 9.00"


def test_sizes_are_bytes_or_rows(script: ModuleType) -> None:
    assert script.choose_sizes("8KB,57344", "", 0) == (8192, 57_344)
    assert script.choose_sizes("", "1,14", 8192) == (8192, 114_688)
    assert script.choose_sizes("", "", 0) == DEFAULT_SIZES
    for wrong in (("8KB", "1", 8192), ("", "1", 0), ("", "", 8192)):
        with pytest.raises(ConfigError, match="--hidden-size"):
            script.choose_sizes(*wrong)


def test_a_record_names_the_commit_and_stays_small(script: ModuleType, tmp_path: Path) -> None:
    config = GpuBenchConfig(sizes=(8192,), world_size=2, backends=("push",))
    samples = tuple(2.0 + index / 7 for index in range(1000))
    rows = [row("push", 8192, 2.0, samples_us=samples), row("push", 8192, 2.1, is_candidate=True)]
    arguments = Namespace(out=tmp_path / "record.json", commit="0a1b2c-dirty", transport="nvlink")
    script.save_record(arguments, config, rows, {}, 0.6, ())
    record = json.loads(arguments.out.read_text())
    assert record["commit"] == {"hash": "0a1b2c", "dirty": True}
    first, second = record["results"]["rows"]
    assert first["samples_us"][1] == 2.143
    assert (first["row_elements"], first["tried"], second["tried"]) == (4096, False, True)
    assert arguments.out.stat().st_size < 12 * len(samples) + 4000


def test_rank_processes_need_no_compiled_module_and_no_command_line() -> None:
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('pydantic', 'typer', 'rich', 'msgspec') or name == 'fastverify.comm._shm':
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import fastverify.comm.bench.gpu_run, fastverify.comm.bench.gpu_rank, fastverify.records
import fastverify.comm.cuda.backend, fastverify.comm.peers.nccl, fastverify.comm.gpu.chooser
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PATH.parents[1])
