"""Numbers in README come from the records it links to."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def test_demo_table_is_the_record() -> None:
    record = json.loads((RESULTS / "demo_cpu_2026-11.json").read_text())
    forms = {"plain_tok_s": "{:,.0f}", "speculative_tok_s": "{:,.0f}", "speedup": "{:.2f}", "verify_ms": "{:.2f}"}
    for name, form in forms.items():
        before, after = (form.format(record[side][name]) for side in ("before", "after"))
        assert f"| {before} | {after} |" in README, name


def test_gpu_table_is_the_record() -> None:
    rows = json.loads((RESULTS / "all_reduce_gpu_h200x2_2026-11.json").read_text())["results"]["rows"]
    labels = {
        "`push`, as the chooser runs it": ("auto", None),
        "FlashInfer": ("flashinfer", None),
        "vLLM's custom kernel": ("vllm", None),
        "NCCL": ("nccl", "default"),
        "`host`": ("host", None),
        "NCCL without peer access": ("nccl", "p2p_off"),
    }
    for name, (backend, setting) in labels.items():
        us = {
            row["num_bytes"]: row["median_us"]
            for row in rows
            if (row["backend"], row["setting"], row["fused"]) == (backend, setting, False)
        }
        cells = " | ".join(f"{us[size << 10]:.2f}" for size in (8, 56, 224, 1024))
        assert f"| {name} | {cells} |" in README, name


def test_linked_records_exist() -> None:
    for part in README.split("](")[1:]:
        target = part.partition(")")[0]
        assert (ROOT / target).exists(), target
