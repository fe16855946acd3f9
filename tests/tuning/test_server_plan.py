"""The plan for SGLang and vLLM: gates, predictions of both arms, ranking, and the files that it becomes."""

import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fastverify.diagnosis.answer import answer_report
from fastverify.diagnosis.facts_file import make_facts, parse_facts
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.reported import LaunchFacts
from fastverify.errors import ConfigError
from fastverify.tuning.catalogue.entry import SERVERS, catalogue_of
from fastverify.tuning.ledger import Ledger
from fastverify.tuning.serve_script import serve_script
from fastverify.tuning.server_plan import ServerPlan, plan_for_server
from fastverify.tuning.server_plan_files import LEDGER_FILE, write_plan
from fastverify.tuning.server_plan_text import answer_markdown, summary_lines

STORY = (Path(__file__).parent.parent / "data" / "story_facts.yaml").read_text()
VLLM = {
    "server": "vllm",
    "server_version": "0.33.0",
    "model": "Qwen3-30B-A3B",
    "hardware": "4x RTX PRO 6000",
    "tp": 4,
    "plain_tok_s": 120,
    "speculative_tok_s": 110,
    "accept_length": 2.2,
    "method": "eagle3",
    "num_draft_steps": 3,
    "top_k": 1,
}


def plan_of(facts: Any) -> ServerPlan:
    plan = plan_for_server(Report(facts), answer_report(facts))
    assert plan is not None
    return plan


@pytest.fixture(scope="module")
def story() -> ServerPlan:
    return plan_of(parse_facts(STORY, "story"))


def entry_of(plan: ServerPlan, experiment_id: str) -> Any:
    return next(entry for entry in plan.experiments if entry.id == experiment_id)


@pytest.mark.parametrize("server", SERVERS)
def test_catalogue_is_consistent(server: str) -> None:
    entries = catalogue_of(server)
    ids = [entry.id for entry in entries]
    assert len(ids) == len(set(ids)) >= 25
    for entry in entries:
        assert set(entry.conflicts) <= set(ids), entry.id
        assert entry.flags or entry.env or entry.speculative_config or entry.versions.since == "9999", entry.id
        assert 0 < entry.probability <= 1, entry.id
        assert entry.source, entry.id
        assert entry.engagement, entry.id


def test_catalogue_has_the_seven_of_the_story(story: ServerPlan) -> None:
    seven = {"nccl.tree", "nccl.fewer-channels", "comm.fusion", "comm.pcie-ipc", "comm.mscclpp", "comm.torch-symm-mem"}
    assert seven | {"ep.all-ranks", "measure.trace"} <= {entry.id for entry in story.experiments}


def test_gates_name_their_reason(story: ServerPlan) -> None:
    assert "SM90 or SM10X" in entry_of(story, "comm.fusion").refusal
    assert "atomics" in entry_of(story, "comm.torch-symm-mem").refusal
    assert entry_of(story, "draft.chain3").refusal == "these are the present settings"
    assert entry_of(story, "comm.pcie-ipc").refusal is None
    assert "capture" in entry_of(story, "nccl.tree").why
    assert entry_of(story, "nccl.tree").env == {"NCCL_ALGO": "allreduce:tree"}
    assert "keeps its all-reduce" in entry_of(story, "ep.all-ranks").why


def test_a_faster_all_reduce_helps_both_arms(story: ServerPlan) -> None:
    predicted = entry_of(story, "comm.pcie-ipc").predicted
    assert 60 < predicted.tok_s.low < predicted.tok_s.mid < predicted.tok_s.high
    assert 82 < predicted.plain_tok_s.low < predicted.plain_tok_s.mid
    assert predicted.speedup.mid > predicted.plain_speedup.mid


def test_speculation_off_is_the_measured_plain_arm(story: ServerPlan) -> None:
    predicted = entry_of(story, "drafter.none").predicted
    assert predicted.tok_s.mid == pytest.approx(82)
    assert predicted.speedup.mid == pytest.approx(82 / 60)


def test_savings_of_one_resource_are_not_added(story: ServerPlan) -> None:
    """The seven savings overlap: no combination can beat a verify pass without any all-reduce."""
    free_verify_tok_s = 2.0 * 1000 / (5 + 3.34)
    backends = [e for e in story.experiments if e.predicted and (e.id.startswith(("comm.", "nccl.")))]
    assert sum(e.predicted.tok_s.mid - 60 for e in backends) > free_verify_tok_s - 60
    assert story.together.predicted.tok_s.mid < free_verify_tok_s
    assert sum(id_.startswith(("comm.", "nccl.")) for id_ in story.together.ids) == 1


def test_ranking_is_gain_times_probability_over_effort(story: ServerPlan) -> None:
    scores = [entry.score for entry in story.possible]
    assert scores == sorted(scores, reverse=True)
    assert all(entry.refusal for entry in story.experiments[len(story.possible) :])
    assert {"R-ARGATE", "R-ARFLOOR"} <= set(entry_of(story, "comm.pcie-ipc").follows_from)


def test_versions_and_conflicts_gate() -> None:
    old = plan_of(make_facts({**VLLM, "server_version": "0.24.0"}, "t"))
    assert "since 0.30" in entry_of(old, "comm.pcie-ipc").refusal
    eager = plan_of(make_facts({**VLLM, "launch": {"flags": {"enforce-eager": True}}}, "t"))
    assert "beside --enforce-eager" in entry_of(eager, "comm.pcie-ipc").refusal
    assert entry_of(eager, "graphs.on").refusal is None
    assert eager.possible[0].predicted is not None
    nccl = plan_of(make_facts({**VLLM, "hardware": {"gpu": "RTX PRO 6000", "packages": {"nccl": "2.31.1"}}}, "t"))
    assert "NCCL" in entry_of(nccl, "nccl.tree").refusal
    assert entry_of(nccl, "nccl.tree-2.31").refusal is None


def test_own_benchmark_replaces_the_published_times() -> None:
    arms = [
        {"speculative_tok_s": 110, "accept_length": 2.2},
        {"label": "bench", "all_reduce_backend": "pcie-ipc", "all_reduce_us": {4096: 300, 16384: 300}},
    ]
    facts = {key: value for key, value in VLLM.items() if key not in ("speculative_tok_s", "accept_length")}
    published, slow = plan_of(make_facts(VLLM, "t")), plan_of(make_facts({**facts, "arms": arms}, "t"))
    fast = entry_of(published, "comm.pcie-ipc").predicted.tok_s.mid
    assert entry_of(slow, "comm.pcie-ipc").predicted.tok_s.mid < 110 <= fast


def test_thin_report_has_a_plan_without_predictions() -> None:
    plan = plan_of(make_facts({"server": "vllm", "plain_tok_s": 70, "speculative_tok_s": 60}, "t"))
    assert all(entry.predicted is None for entry in plan.experiments)
    assert plan.together is None
    facts = make_facts({"server": "gpt-fast", "plain_tok_s": 70}, "t")
    assert plan_for_server(Report(facts), answer_report(facts)) is None


def test_prediction_holds_for_a_published_pair() -> None:
    """vllm#56128: over PCIe peer access plain decoding went from 96.8 to 110.6 tok/s, MTP with 3 drafts from 219.4 to
    227.8. The acceptance length and the model's sizes are not in the report; 3.0 and 64 x 5120 are taken."""
    facts = {
        **VLLM,
        "model": {"name": "27B", "num_layers": 64, "hidden_size": 5120, "num_experts": 0},
        "plain_tok_s": 96.8,
        "speculative_tok_s": 219.4,
        "accept_length": 3.0,
    }
    predicted = entry_of(plan_of(make_facts(facts, "t")), "comm.pcie-ipc").predicted
    assert predicted.plain_speedup.contains(110.6 / 96.8)
    assert predicted.speedup.contains(227.8 / 219.4)
    assert predicted.speedup.high < 1.3


def test_summary_has_seven_lines(story: ServerPlan) -> None:
    lines = summary_lines(answer_report(parse_facts(STORY, "story")), story)
    assert len(lines) == 7
    assert "needs 2.73" in lines[0]


def test_script_changes_the_launch_and_nothing_else(story: ServerPlan, tmp_path: Path) -> None:
    launch = LaunchFacts(
        flags={"model-path": "a b/c", "tp": 8, "speculative-num-steps": 3, "enable-metrics": True},
        env={"NCCL_DEBUG": "INFO"},
    )
    text = serve_script("sglang", launch, entry_of(story, "draft.chain1"))
    arguments = run_with_fake_python(text, tmp_path)
    assert arguments[:2] == ["-m", "sglang.launch_server"]
    assert arguments[arguments.index("--model-path") + 1] == "a b/c"
    assert arguments[arguments.index("--speculative-num-steps") + 1] == "1"
    assert "--enable-metrics" in arguments
    off = run_with_fake_python(serve_script("sglang", launch, entry_of(story, "drafter.none")), tmp_path)
    assert "--speculative-num-steps" not in off


def test_script_merges_the_speculative_config() -> None:
    plan = plan_of(make_facts(VLLM, "t"))
    launch = LaunchFacts(flags={"model": "m", "speculative-config": '{"method":"eagle3","num_speculative_tokens":3}'})
    text = serve_script("vllm", launch, entry_of(plan, "draft.tp1"))
    assert '"method": "eagle3"' in text
    assert '"draft_tensor_parallel_size": 1' in text


def run_with_fake_python(script: str, folder: Path) -> list[str]:
    """Arguments that the script gives to `python`, which is replaced by one that prints them."""
    fake = folder / "python"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    fake.chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={"PATH": path})
    return done.stdout.splitlines()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.urls += [value or "" for name, value in attrs if name in ("src", "href")]


def test_files_of_a_plan(story: ServerPlan, tmp_path: Path) -> None:
    facts = parse_facts(STORY, "story")
    answer = answer_report(facts)
    written = write_plan(tmp_path / "out", facts, answer, story)
    assert all(path.exists() for path in written)
    assert (tmp_path / "out" / "eagle-fast-verify.md").read_text() == answer_markdown(answer, story)
    scripts = [path for path in written if path.name == "serve.sh"]
    assert len(scripts) == len(story.possible)
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
    with Ledger.open(tmp_path / "out" / LEDGER_FILE) as ledger:
        states = {entry.experiment_id: entry.state for entry in ledger.experiments()}
    assert states["comm.pcie-ipc"] == "pending"
    assert states["comm.fusion"] == "skipped"
    json.loads((tmp_path / "out" / "plan.json").read_text())
    tags = Tags()
    tags.feed((tmp_path / "out" / "diagnosis.html").read_text())
    assert tags.urls == []
    with pytest.raises(ConfigError, match="already"):
        write_plan(tmp_path / "out", facts, answer, story)


def test_page_escapes_what_a_report_says(tmp_path: Path) -> None:
    arms = [{"label": "<script>alert(1)</script>", "speculative_tok_s": 60, "accept_length": 1.1, "verify_ms": 9}]
    facts = make_facts({"server": "sglang", "plain_tok_s": 82, "arms": arms}, "t")
    answer = answer_report(facts)
    write_plan(tmp_path / "o", facts, answer, plan_of(facts))
    page = (tmp_path / "o" / "diagnosis.html").read_text()
    Tags().feed(page)
    assert "&lt;script&gt;" in page
