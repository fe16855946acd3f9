"""`fastverify bench links`: tables, JSON and exit codes from reports of imagined machines."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
from fastverify.cli.main import app  # noqa: E402
from fastverify.comm.cuda import links  # noqa: E402
from fastverify.comm.cuda.link_report import LinkReport  # noqa: E402
from tests.comm.cuda.link_examples import two_switches  # noqa: E402

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[LinkReport], None]:
    return lambda report: monkeypatch.setattr(links, "measure_links", lambda _: report)


def test_tables_show_links_matrices_and_the_verdict(machine: Callable[[LinkReport], None]) -> None:
    machine(two_switches(100.0))
    result = RUNNER.invoke(app, ["bench", "links"])
    assert result.exit_code == 0
    for words in (
        "4 GPUs, CUDA 13.0, 1 NUMA nodes",
        "Gen1 x16",
        "63",
        "rank 0, no atomics",
        "flag to a peer, alone, us",
        "0.70",
        "store to a peer, alone, GB/s",
        "host node 0 to gpu 1",
        "2.50 us",
        "concurrent writes: no collapse: 100.0 GB/s",
        "hint: peers have no native atomics",
        "all-reduce of 4 ranks on these links",
        "host_two_shot",
    ):
        assert words in result.stdout


def test_a_collapse_is_a_finding(machine: Callable[[LinkReport], None]) -> None:
    machine(two_switches(5.4))
    result = RUNNER.invoke(app, ["bench", "links", "--json"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["collapse"]["collapsed"] is True
    assert LinkReport.from_dict(document) == two_switches(5.4)
    times = {p["backend"]: p["us"] for p in document["predictions"] if p["num_bytes"] == 172_032}
    assert min(times["host_outbox"], times["host_two_shot"]) < times["push_two_shot"] < times["push"]


def test_what_was_not_measured_says_why(machine: Callable[[LinkReport], None]) -> None:
    machine(two_switches(None, reason="GPU 0 cannot use memory of GPU 2"))
    result = RUNNER.invoke(app, ["bench", "links"])
    assert result.exit_code == 0
    assert "not measured: GPU 0 cannot use memory of GPU 2" in result.stdout
