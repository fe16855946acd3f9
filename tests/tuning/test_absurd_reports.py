"""Reports with absurd but well-formed numbers: refused with a reason, or answered with finite numbers; no crash."""

import json
import random
from typing import Any

import pytest

from fastverify.diagnosis.answer import answer_report
from fastverify.diagnosis.facts_file import make_facts
from fastverify.diagnosis.report import Report
from fastverify.errors import ConfigError
from fastverify.tuning.server_plan import plan_for_server
from fastverify.tuning.server_plan_page import answer_page
from fastverify.tuning.server_plan_text import answer_markdown

NUMBERS = [1e-9, 0.01, 1, 3.3, 82, 1000, 1e12]
CHOICES: dict[str, list[Any]] = {
    **dict.fromkeys(("plain_tok_s", "speculative_tok_s", "verify_ms", "itl_ms", "tpot_ms"), NUMBERS),
    **dict.fromkeys(("verify_compute_ms", "verify_all_reduce_ms", "draft_ms", "plain_all_reduce_ms"), [0, 1, 25]),
    "accept_length": [1, 1.0001, 2, 1e5],
    "batch": [1, 64, 10**9],
    "context": [0, 10**6],
    "tp": [1, 2, 3, 8],
    "num_draft_steps": [1, 7, 1000],
    "top_k": [1, 64],
    "num_verify_tokens": [2, 16, 10**6],
    "method": ["eagle3", "ngram", "none"],
    "shape": ["chain", "tree"],
    "workload": ["random", "chat"],
    "all_reduce_backend": ["nccl", "custom", "pcie-ipc"],
    "accept_rate": [0, 1],
    "accept_rate_per_position": [[], [0, 0, 0], [1, 1]],
    "all_reduces_per_verify": [1, 122],
    "all_reduce_us": [{1: 1}, {57344: 205, 14336: 3}],
    "is_reference": [True],
}


def absurd(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)

    def arm() -> dict[str, Any]:
        return {name: chance.choice(values) for name, values in CHOICES.items() if chance.random() < 0.45}

    model = {"num_layers": 61, "hidden_size": 7168, "num_experts": 2, "num_experts_per_token": 8}
    return {
        **arm(),
        "arms": [arm() for _ in range(chance.randint(0, 3))],
        "server": chance.choice(["sglang", "vllm"]),
        "model": chance.choice(["Kimi-K2.5", "x", model]),
        "fabric": chance.choice(["nvlink", "pcie", "pcie-gen5", "network", "host-memory"]),
        "projection": {"verify_ms": chance.choice([1e-6, 12, 1e6])},
    }


@pytest.mark.parametrize("seed", range(40))
def test_absurd_reports_are_refused_or_answered(seed: int) -> None:
    facts = make_facts(absurd(seed), "absurd")
    try:
        answer = answer_report(facts)
    except ConfigError as refusal:
        text = str(refusal)
    else:
        plan = plan_for_server(Report(facts), answer)
        text = answer_markdown(answer, plan) + answer_page(answer, plan)
        json.dumps([answer.model_dump(mode="json"), plan.model_dump(mode="json")], allow_nan=False)
    assert text
