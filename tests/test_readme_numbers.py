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


def test_linked_records_exist() -> None:
    for part in README.split("](")[1:]:
        target = part.partition(")")[0]
        assert (ROOT / target).exists(), target
