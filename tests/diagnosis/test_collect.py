"""From a folder of pasted files to one set of facts: pairs of rates, precedence, remarks, sources with lines."""

import io
import json
import sys
from pathlib import Path

import pytest

from fastverify.diagnosis.collect import Collected, collect, collect_documents
from fastverify.diagnosis.reported import MachineFacts, ModelFacts
from fastverify.errors import ConfigError
from tests.diagnosis.readers import texts


def collected(**files: str) -> Collected:
    return collect_documents([texts.document(text, name) for name, text in files.items()])


def test_two_logs_and_a_topology_are_one_report():
    result = collected(spec=texts.SGLANG_0_5_5, plain=texts.SGLANG_0_5_23_PLAIN, topo=texts.TOPOLOGY)
    facts = result.facts
    assert (facts.plain_tok_s, facts.speculative_tok_s, facts.accept_length) == (82.0, 60.0, 2.0)
    assert (facts.batch, facts.tp, facts.method, facts.num_verify_tokens) == (1, 8, "eagle3", 4)
    assert [(arm.batch, arm.speculative_tok_s, arm.plain_tok_s) for arm in facts.arms] == [(2, 99.0, None)]
    assert facts.server == "sglang"
    assert isinstance(facts.hardware, MachineFacts)
    assert facts.hardware.p2p_atomics is False
    assert facts.log.cuda_graph_share == 0.8
    assert facts.launch.resolved["speculative_algorithm"] == "EAGLE3"
    assert facts.launch.resolved["disable_cuda_graph"] is False
    assert result.kinds == {"spec": ("SGLang log",), "plain": ("SGLang log",), "topo": ("GPU topology",)}
    assert result.unknown == ()


def test_every_number_keeps_its_source_and_line():
    result = collected(spec=texts.SGLANG_0_5_5)
    for piece in result.evidence:
        assert piece.source == "spec"
        assert piece.line is not None
        assert 1 <= piece.line <= len(texts.SGLANG_0_5_5.splitlines())


def test_one_pasted_issue_holds_several_kinds():
    issue = "### Command\n```\nvllm serve m -tp 8\n```\n" + texts.COLLECT_ENV + texts.TOPOLOGY + texts.VLLM_BENCH
    result = collected(issue=issue)
    assert set(result.kinds["issue"]) >= {"launch command", "environment dump", "GPU topology", "benchmark table"}
    assert result.facts.speculative_tok_s == 60.0
    assert result.facts.tp == 8
    assert isinstance(result.facts.hardware, MachineFacts)
    assert result.facts.hardware.num_gpus == 4
    assert any("num_gpus" in note for note in result.notes), "sources that disagree are told"


def test_a_hand_written_file_wins_over_what_was_read():
    written = "plain_tok_s: 80\nmodel: Kimi-K2.5\nhardware: RTX PRO 6000\n"
    result = collected(facts=written, plain=texts.SGLANG_0_5_23_PLAIN, topo=texts.TOPOLOGY)
    assert result.facts.plain_tok_s == 80
    assert isinstance(result.facts.model, ModelFacts)
    assert result.facts.model.name == "Kimi-K2.5"
    assert isinstance(result.facts.hardware, MachineFacts)
    assert (result.facts.hardware.gpu, result.facts.hardware.worst_link) == ("RTX PRO 6000", "SYS")
    assert result.kinds["facts"] == ("facts file",)


def test_a_misspelt_name_in_a_facts_file_is_an_error():
    with pytest.raises(ConfigError, match="accept_lenght"):
        collected(facts="plain_tok_s: 80\naccept_lenght: 2\n")


def test_rates_of_different_batches_are_no_pair():
    spec = texts.SGLANG_BENCH.replace("concurrency:                 8", "concurrency:                 4")
    plain = texts.SGLANG_BENCH.replace("Accept length:                           2.14\n", "")
    result = collected(spec=spec, plain=plain)
    assert result.facts.plain_tok_s is None
    assert result.facts.batch == 4
    assert any("no pair" in note for note in result.notes)


def test_a_benchmark_outranks_a_log_and_a_sweep_becomes_arms():
    rows = [
        {"step_time": 0.010, "acc_length": 1.0, "batch_size": 1, "steps": 0},
        {"step_time": 0.020, "acc_length": 2.0, "batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4},
        {"step_time": 0.030, "acc_length": 2.5, "batch_size": 1, "steps": 7, "topk": 4, "num_draft_tokens": 16},
    ]
    result = collected(sweep="\n".join(map(json.dumps, rows)), log=texts.SGLANG_0_5_23_PLAIN)
    entries = (result.facts, *result.facts.arms)
    assert [(arm.num_draft_steps, arm.plain_tok_s) for arm in entries] == [(3, 100.0), (7, 100.0)]


def test_a_value_that_cannot_be_is_left_out_and_told():
    page = 'sglang:spec_num_draft_tokens{a="b"} 4\nsglang:spec_accept_length{a="b"} 2.0\n'
    dump = {"kind": "fastverify env", "facts": {"hardware.num_gpus": -3, "host.cpu": "x", "hardware.iommu": "maybe"}}
    result = collected(page=page, dump=json.dumps(dump))
    assert result.facts.accept_length == 2.0
    assert any("num_gpus" in note for note in result.notes)
    assert any("iommu" in note for note in result.notes)


def test_pcie_generation_joins_the_fabric():
    assert collected(topo=texts.TOPOLOGY, lspci=texts.LSPCI).facts.fabric == "pcie-gen5"


def test_standard_input_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "plain.log").write_text(texts.SGLANG_0_5_23_PLAIN)
    (tmp_path / "photo.txt").write_text("nothing here")
    stdin = io.TextIOWrapper(io.BytesIO(texts.SGLANG_0_5_5.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    result = collect([tmp_path, "-"])
    assert result.facts.plain_tok_s == 82.0
    assert result.facts.speculative_tok_s == 60.0
    assert [Path(file.source).name for file in result.unknown] == ["photo.txt"]
    assert "standard input" in result.kinds


@pytest.mark.parametrize("key", ["log", "message"])
def test_a_log_that_a_container_wrapped_in_json_keeps_its_lines(key):
    wrapped = "\n".join(json.dumps({key: line + "\n", "stream": "stderr"}) for line in texts.SGLANG_0_5_5.splitlines())
    result = collected(log=wrapped)
    assert (result.facts.speculative_tok_s, result.facts.accept_length) == (60.0, 2.0)
    rate = next(piece for piece in result.evidence if piece.name == "speculative_tok_s" and piece.value == 60.0)
    assert rate.line is not None
    assert "gen throughput (token/s): 60.00" in wrapped.splitlines()[rate.line - 1]


def test_a_trace_is_told_where_to_go():
    result = collected(trace=json.dumps({"traceEvents": [], "schemaVersion": 1}))
    assert "give it as a file" in result.unknown[0].reason
