"""The story as a person would paste it: two logs, a metrics page, a config and a topology, and no number by hand."""

import json

from fastverify.diagnosis.answer import Answer, answer_report
from fastverify.diagnosis.collect import collect_documents
from fastverify.diagnosis.known_bugs import bugs_of
from fastverify.diagnosis.report import Report
from tests.diagnosis.readers import texts

METRICS = """\
sglang:spec_verify_calls_total{model_name="m"} 1000.0
sglang:forward_execution_seconds_total{category="target_verify",model_name="m"} 30.0
sglang:forward_execution_seconds_total{category="eagle_draft",model_name="m"} 2.0
"""
CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "intermediate_size": 18432,
        "vocab_size": 163840,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "dtype": "bfloat16",
    },
}


def topology(num_gpus: int) -> str:
    header = "\t" + "\t".join(f"GPU{i}" for i in range(num_gpus)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    half = num_gpus // 2
    rows = []
    for i in range(num_gpus):
        cells = (" X " if i == j else "NODE" if i // half == j // half else "SYS" for j in range(num_gpus))
        rows.append("\t".join((f"GPU{i}", *cells, "0-31", str(i // half), "N/A")))
    return "\n".join((header, *rows))


def pasted() -> tuple[Report, Answer]:
    files = {
        "server.log": texts.SGLANG_0_5_5,
        "plain.log": texts.SGLANG_0_5_23_PLAIN,
        "metrics.txt": METRICS,
        "config.json": json.dumps(CONFIG, indent=1),
        "topo.txt": topology(8),
    }
    collected = collect_documents([texts.document(text, name) for name, text in files.items()])
    assert collected.unknown == ()
    report = Report(collected.facts, collected.evidence)
    return report, answer_report(collected.facts, collected.evidence)


def test_the_verdict_of_the_story_without_a_number_by_hand():
    _, answer = pasted()
    assert answer.speedup is not None
    assert answer.break_even_accept_length is not None
    assert answer.cycle_ms is not None
    assert round(answer.break_even_accept_length, 2) == 2.73
    assert round(answer.cycle_ms, 1) == 33.3
    assert round(answer.speedup, 2) == 0.73
    rules = {finding.rule for finding in answer.findings}
    assert {"R-BE", "R-ARGATE", "R-ARSIZE"} <= rules


def test_the_gate_is_shown_with_its_line_of_the_log():
    _, answer = pasted()
    gate = next(finding for finding in answer.findings if finding.rule == "R-ARGATE")
    assert any(piece.source == "server.log" and piece.line for piece in gate.evidence)


def test_a_server_that_prints_a_setting_has_it():
    report, _ = pasted()
    assert "cuda_graph_max_bs" in report.facts.launch.resolved
    assert "sglang-cuda-graph-max-bs-gone" not in {bug.id for bug, _ in bugs_of(report)}


def test_a_flag_left_to_the_server_is_engaged_whatever_came_out():
    command = "vllm serve /m/kimi -tp 8 --dtype auto --max-num-seqs 8 --spec-method eagle3 --spec-tokens 3"
    log = texts.VLLM_0_33.replace("'max_num_seqs': 8", "'max_num_seqs': 4, 'dtype': 'torch.bfloat16'")
    collected = collect_documents([texts.document(command, "launch.sh"), texts.document(log, "server.log")])
    assert collected.facts.launch.resolved["dtype"] == "bfloat16"
    answer = answer_report(collected.facts, collected.evidence)
    engaged = [finding.title for finding in answer.findings if finding.rule == "R-ENGAGE"]
    assert len(engaged) == 1
    assert "max-num-seqs was given as 8, the server runs with 4" in engaged[0]
