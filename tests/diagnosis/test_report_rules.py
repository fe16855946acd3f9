"""Rules on a report, one threshold at a time: each fires just beyond it and is silent just before."""

import re
from pathlib import Path
from typing import Any

import pytest

from fastverify.diagnosis import rules
from fastverify.diagnosis.answer import answer_report
from fastverify.diagnosis.facts_file import make_facts
from fastverify.diagnosis.findings import Finding

BASE: dict[str, Any] = {
    "server": "sglang",
    "server_version": "0.5.23",
    "model": "Kimi-K2.5",
    "fabric": "pcie-gen5",
    "tp": 8,
    "plain_tok_s": 80,
    "speculative_tok_s": 100,
    "accept_length": 2.5,
    "num_draft_steps": 3,
    "top_k": 1,
}


def findings(rule: str, **changes: Any) -> list[Finding]:
    facts = make_facts({**BASE, **changes}, "test")
    return [finding for finding in answer_report(facts).findings if finding.rule == rule]


def dump(**values: Any) -> dict[str, Any]:
    return {"hardware": {"gpu": "RTX PRO 6000", "num_gpus": 8, **values}}


@pytest.mark.parametrize(
    ("rule", "changes", "without"),
    [
        ("R-BE", {"speculative_tok_s": 79}, {"speculative_tok_s": 81}),
        ("R-AL", {"accept_length": 1.2}, {"accept_length": 1.6}),
        ("R-AL", {"accept_rate_per_position": [0.39, 0.2, 0.1]}, {"accept_rate_per_position": [0.5, 0.3, 0.1]}),
        ("R-GRAPH", {"log": {"cuda_graph": False}}, {"log": {"cuda_graph": True}}),
        ("R-GRAPH", {"log": {"cuda_graph_share": 0.5}}, {"log": {"cuda_graph_share": 0.95}}),
        (
            "R-GRAPH",
            {"log": {"cuda_graph_mode_requested": "FULL", "cuda_graph_mode": "PIECEWISE"}},
            {"log": {"cuda_graph_mode_requested": "FULL", "cuda_graph_mode": "full"}},
        ),
        (
            "R-GRAPH",
            {"batch": 20, "log": {"cuda_graph_max_batch": 2}},
            {"batch": 2, "log": {"cuda_graph_max_batch": 2}},
        ),
        (
            "R-GRAPH",
            {"batch": 8, "launch": {"flags": {"cudagraph-capture-sizes": "1 2 4 8"}}},
            {"batch": 2, "launch": {"flags": {"cudagraph-capture-sizes": "1 2 4 8"}}},
        ),
        ("R-TREE", {"num_verify_tokens": 8}, {"num_verify_tokens": 4}),
        (
            "R-TREE",
            {"top_k": 4, "num_verify_tokens": 16},
            {"top_k": 4, "num_verify_tokens": 16, "model": "Qwen3-8B"},
        ),
        ("R-ARGATE", {}, {"tp": 2}),
        ("R-ARGATE", {}, {"fabric": "nvlink"}),
        ("R-ARSIZE", {}, {"num_draft_steps": 1}),
        ("R-ARFLOOR", {"all_reduce_us": {57344: 63}}, {"all_reduce_us": {57344: 62}}),
        ("R-ACS", dump(acs_redirect_bridges=4), dump(acs_redirect_bridges=0)),
        ("R-ACS", dump(acs_redirect_bridges=4), {**dump(acs_redirect_bridges=4), "fabric": "nvlink"}),
        ("R-IOMMU", dump(iommu="translated"), dump(iommu="passthrough")),
        ("R-LINK", dump(pcie_width=8, pcie_max_width=16), dump(pcie_width=16, pcie_max_width=16)),
        ("R-P2P", dump(p2p_read=False), dump(p2p_read=True)),
        ("R-P2P", {"launch": {"env": {"NCCL_P2P_DISABLE": "1"}}}, {"launch": {"env": {"NCCL_P2P_DISABLE": "0"}}}),
        (
            "R-ATOMICS",
            {**dump(p2p_atomics=False), "launch": {"flags": {"enable-torch-symm-mem": True}}},
            dump(p2p_atomics=False),
        ),
        ("R-SKEW", dump(gpu_utilization=[0.82, 0.51]), dump(gpu_utilization=[0.82, 0.7])),
        (
            "R-SPIN",
            dump(gpu_utilization=[1.0, 1.0], gpu_power_share=[0.2, 0.2]),
            dump(gpu_utilization=[1.0, 1.0], gpu_power_share=[0.7, 0.7]),
        ),
        ("R-BENCH", {"workload": "random"}, {"workload": "chat"}),
        ("R-BENCH", {"bigram_ratio": 0.1}, {"bigram_ratio": 0.6}),
        (
            "R-VER",
            dump(packages={"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.6.13"}),
            dump(packages={"flashinfer-python": "0.7.2.post1", "flashinfer-cubin": "0.7.2"}),
        ),
        (
            "R-ENGAGE",
            {"launch": {"flags": {"tp": 8}, "resolved": {"tp": 4}}},
            {"launch": {"flags": {"tp": 8}, "resolved": {"tp": 8.0}}},
        ),
        (
            "R-ENGAGE",
            {"launch": {"flags": {"attention-backend": "fa3"}, "resolved": {"attention_backend": "triton"}}},
            {"launch": {"flags": {"attention-backend": "auto", "o": '{"a":1}'}, "resolved": {"o": "{'a': 1}"}}},
        ),
    ],
)
def test_rule_fires_beyond_its_threshold_only(rule: str, changes: dict[str, Any], without: dict[str, Any]) -> None:
    assert findings(rule, **changes)
    assert not findings(rule, **without)


def test_log_line_makes_the_veto_sure() -> None:
    (guess,) = findings("R-ARGATE")
    line = "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs"
    (sure,) = findings("R-ARGATE", log={"custom_all_reduce_disabled": line})
    assert (guess.confidence, sure.confidence) == ("medium", "high")


def test_other_collectives_that_change_acceptance_are_corruption() -> None:
    arms = [
        {"all_reduce_backend": "nccl", "accept_length": 3.0, "speculative_tok_s": 100},
        {"all_reduce_backend": "one-shot", "accept_length": 2.4, "speculative_tok_s": 120},
    ]
    changes = {"arms": arms, "speculative_tok_s": None, "accept_length": None}
    (finding,) = findings("R-CORRUPT", **changes)
    assert finding.confidence == "high"
    arms[1]["accept_length"] = 2.9
    assert not findings("R-CORRUPT", **changes)


def test_crossing_of_batches_is_found() -> None:
    rates = {1: (80, 120), 8: (500, 550), 32: (1500, 1200)}
    arms = [{"batch": b, "plain_tok_s": p, "speculative_tok_s": s} for b, (p, s) in rates.items()]
    (finding,) = findings("R-WIDE", arms=arms, speculative_tok_s=None)
    assert finding.numbers == {"last_winning_batch": 8, "first_losing_batch": 32}


def test_draft_on_one_rank_that_still_talks() -> None:
    config = '{"method":"eagle3","draft_tensor_parallel_size":1}'
    launch = {"flags": {"speculative-config": config}}
    (finding,) = findings("R-DRAFTTP", server="vllm", launch=launch, draft_collectives_per_cycle=12)
    assert finding.confidence == "high"
    assert not findings("R-DRAFTTP", server="vllm", launch=launch, draft_collectives_per_cycle=0)


def test_requested_backend_without_its_line_did_not_engage() -> None:
    launch = {"env": {"VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "1"}}
    log = {"all_reduce_backends": ["FLASHINFER_PCIE_IPC", "PYNCCL"]}
    assert findings("R-ENGAGE", server="vllm", launch=launch, log=log)
    engaged = {**log, "engaged": ["Initialized FlashInfer PCIe IPC all-reduce for TP8"]}
    assert not findings("R-ENGAGE", server="vllm", launch=launch, log=engaged)


def test_page_lists_every_rule_that_can_fire() -> None:
    package = Path(rules.__file__).parent
    known = {name for path in package.glob("*.py") for name in re.findall(r'"(R-[A-Z0-9]+)"', path.read_text())}
    page = (Path(__file__).parent.parent.parent / "docs" / "diagnosis.md").read_text()
    assert len(known) >= 19
    assert {name for name in known if not re.search(rf"{name}\b", page)} == set()
