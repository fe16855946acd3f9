"""From `bench all-reduce --json` on two H200 and two rates to what our all-reduce would save in a verify pass."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastverify.cli import bench_gpu
from fastverify.cli.main import app
from fastverify.comm.bench.gpu_rows import GpuBenchConfig, GpuBenchResult, GpuBenchRow

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "all_reduce_gpu_h200x2_2026-11.json"
LAUNCH = (
    "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --speculative-config "
    '\'{"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}\'\n'
)
NUMBERS = {
    "server": "vllm",
    "server_version": "0.24.0",
    "model": {"num_layers": 32, "hidden_size": 4096, "num_experts": 0},
    "plain_tok_s": 280,
    "speculative_tok_s": 430,
    "accept_length": 2.2,
}
VERIFY_BYTES = 4 * 4096 * 2


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECORD.read_text())
    return document


def document_of(record: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As `fastverify bench all-reduce --json` prints these rows."""
    fields = GpuBenchRow.__dataclass_fields__
    made = tuple(GpuBenchRow(**{name: value for name, value in row.items() if name in fields}) for row in rows)
    names = GpuBenchConfig.__dataclass_fields__
    settings = {name: value for name, value in record["settings"].items() if name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_gpu, "read_gpu_facts", lambda: record["machine"]["gpus"])
        result = GpuBenchResult(made, setups=record["results"]["setups"])
        return bench_gpu.to_document(GpuBenchConfig(**settings), result, [])


def diagnose(folder: Path, document: dict[str, Any], **numbers: Any) -> dict[str, Any]:
    for name, text in (
        ("bench.json", json.dumps(document, indent=2)),
        ("launch.sh", LAUNCH),
        ("numbers.yaml", json.dumps(NUMBERS | numbers)),
    ):
        (folder / name).write_text(text)
    result = CliRunner().invoke(app, ["diagnose", str(folder), "--json", "--fail-on", "never"])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def time_of(rows: list[dict[str, Any]], backend: str, *, fused: bool = False, setting: str | None = None) -> float:
    (us,) = [
        row["median_us"]
        for row in rows
        if (row["backend"], row["num_bytes"], row["fused"], row["setting"]) == (backend, VERIFY_BYTES, fused, setting)
    ]
    return float(us)


def finding_of(answer: dict[str, Any]) -> dict[str, Any]:
    (finding,) = [one for one in answer["findings"] if one["rule"] == "R-ARBENCH"]
    assert isinstance(finding, dict)
    return finding


def experiment_of(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in answer["plan"]["experiments"] if one["id"] == name)


def test_saving_of_a_verify_pass_over_nvlink(tmp_path: Path, record: dict[str, Any]) -> None:
    rows = record["results"]["rows"]
    answer = diagnose(tmp_path, document_of(record, rows))
    facts = answer["inputs"]["facts"]
    assert (facts["fabric"], facts["tp"], facts["hardware"]["worst_link"]) == ("nvlink", 2, "NV18")
    assert facts["hardware"]["gpu"] == "NVIDIA H200"
    finding = finding_of(answer)
    assert finding["experiments"] == ["comm.fastverify"]
    assert finding["numbers"]["present_us"] == time_of(rows, "vllm"), "over NVLink vLLM uses its own kernel, not NCCL"
    assert finding["numbers"]["new_us"] == time_of(rows, "auto")
    saved_ms = 65 * (time_of(rows, "vllm") - time_of(rows, "auto")) / 1000
    assert finding["numbers"]["saved_ms_per_verify"] == pytest.approx(saved_ms)
    assert f"comm.fastverify would save {saved_ms:.2f} ms of a verify pass" in finding["title"]
    text = (tmp_path / "bench.json").read_text().splitlines()
    for piece, backend in zip(finding["evidence"], ("vllm", "auto"), strict=True):
        assert piece["source"].endswith("bench.json")
        assert text[piece["line"] - 1].strip() == f'"backend": "{backend}",'
    assert "your benchmark" in answer["plan"]["estimates"][0]
    assert experiment_of(answer, "comm.fastverify")["follows_from"] == ["R-ARBENCH"]
    assert all("benchmark" not in one["needs"] for one in answer["unknown"] if one["name"] == "verify_all_reduce_ms")


def test_both_arms_gain_and_the_measured_table_decides(tmp_path: Path, record: dict[str, Any]) -> None:
    rows = record["results"]["rows"]
    predicted = experiment_of(diagnose(tmp_path, document_of(record, rows)), "comm.fastverify")["predicted"]
    assert predicted["tok_s"]["mid"] > 430
    assert predicted["plain_tok_s"]["mid"] > 280
    slow = [row | {"median_us": 40.0} if row["backend"] == "auto" and row["median_us"] else row for row in rows]
    answer = diagnose(tmp_path, document_of(record, slow))
    assert experiment_of(answer, "comm.fastverify")["predicted"]["tok_s"]["mid"] < 430
    assert not [one for one in answer["findings"] if one["rule"] == "R-ARBENCH"]


def test_without_peer_access_nccl_is_what_the_host_kernel_replaces(tmp_path: Path, record: dict[str, Any]) -> None:
    """The rows that run through host memory only, as such a machine would measure them."""
    rows = record["results"]["rows"]
    off = [row | {"setting": "default"} for row in rows if row["setting"] == "p2p_off"]
    host = [row for row in rows if row["backend"] in ("host", "host+norm")]
    auto = [row | {"backend": "auto", "launch": None} for row in host if row["backend"] == "host"]
    finding = finding_of(diagnose(tmp_path, document_of(record, off + host + auto), fabric="host-memory"))
    assert finding["numbers"]["present_us"] == time_of(rows, "nccl", setting="p2p_off")
    assert finding["numbers"]["new_us"] == time_of(rows, "host")
    assert finding["title"].startswith("At 32 KB nccl takes")


def test_a_benchmark_of_other_ranks_is_not_used(tmp_path: Path, record: dict[str, Any]) -> None:
    document = document_of(record, record["results"]["rows"])
    answer = diagnose(tmp_path, document, tp=4)
    assert not [one for one in answer["findings"] if one["rule"] == "R-ARBENCH"]
    assert not any("your benchmark" in text for text in answer["plan"]["estimates"])


def test_norms_are_a_table_of_their_own(tmp_path: Path, record: dict[str, Any]) -> None:
    rows = record["results"]["rows"]
    bench = diagnose(tmp_path, document_of(record, rows))["inputs"]["facts"]["bench"]
    size = str(VERIFY_BYTES)
    assert bench["fused_us"]["fastverify"][size] == time_of(rows, "auto", fused=True)
    assert bench["us"]["nccl"][size] == time_of(rows, "nccl", setting="default")
    assert bench["fused_us"]["push"][size] == min(time_of(rows, name, fused=True) for name in ("push", "push+norm")), (
        "one kernel or two is how one backend does it"
    )
