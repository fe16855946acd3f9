"""The collected public reports as facts: what each reporter could have typed, grouped by report."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from fastverify.diagnosis.answer import Answer, answer_report
from fastverify.diagnosis.facts_file import make_facts

CASES_FILE = Path(__file__).parent.parent / "data" / "field_reports.json"
DOCUMENT = json.loads(CASES_FILE.read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = DOCUMENT["cases"]
BACKENDS = {
    "nccl_vs_pcie_p2p": ("nccl", "pcie-p2p"),
    "nccl_vs_one_shot_roce": ("nccl", "one-shot-roce"),
}


def arms_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The arms of one case; the first is the one that the case is about."""
    kind = case["arms"]
    base, other = case["base_tok_s"], case["other_tok_s"]
    shared = drafting_of(case) | {
        "batch": case["batch"],
        "tp": case["tp"],
        "context": case.get("context"),
        "accept_length": case["accept_length"],
    }
    rate = "speculative_tok_s" if case.get("speculative", True) else "plain_tok_s"
    if kind == "plain_vs_spec":
        arms = [{"label": case["id"], "plain_tok_s": base, "speculative_tok_s": other}]
        if "after_fix_tok_s" in case:
            workload = case["id"].rsplit("-", 1)[1]
            arms[0]["workload"] = workload
            arms.append({**arms[0], "label": f"{workload} after", "speculative_tok_s": case["after_fix_tok_s"]})
    elif kind == "sync_vs_async":
        arms = [
            {"label": label, "itl_ms": itl, "tpot_ms": tpot, "method": "eagle"}
            for label, itl, tpot in zip(("sync", "async"), case["itl_ms"], case["tpot_ms"], strict=True)
        ]
    elif kind == "random_vs_chat":
        names = ("random", "chat", "aime")
        arms = [
            {"label": name, "workload": name, "accept_length": case[f"accept_length_{name}"], "method": "eagle3"}
            for name in names
        ]
    elif kind == "nccl_vs_pcie_p2p":
        arms = [
            {"label": f"{case['id']} {name}", "all_reduce_backend": name, rate: tok_s}
            for name, tok_s in zip(BACKENDS[kind], (base, other), strict=True)
        ]
    elif kind == "nccl_default_vs_variant":
        variant = case["id"].removeprefix("rtx6kpro-kimi-c32-")
        arms = [
            {"label": f"{case['id']} {name}", "all_reduce_backend": name, rate: tok_s}
            for name, tok_s in (("nccl", base), (variant, other))
        ]
    elif kind == "nccl_vs_one_shot_roce":
        arms = [
            {
                "label": name,
                "all_reduce_backend": name,
                "all_reduce_us": {int(size): us[index] for size, us in case["allreduce_us"].items()},
            }
            for index, name in enumerate(BACKENDS[kind])
        ]
    elif kind == "lab_vs_user":
        arms = [
            {"label": "user", "speculative_tok_s": other},
            {"label": "lab", "speculative_tok_s": base, "is_reference": True},
        ]
    elif kind == "tp1_vs_tp2":
        arms = [{"label": "tp2", "tp": 2, "plain_tok_s": other}, {"label": "tp1", "tp": 1, "plain_tok_s": base}]
    else:
        raise AssertionError(f"a new kind of case: {kind}")
    return [{key: value for key, value in {**shared, **arm}.items() if value is not None} for arm in arms]


def drafting_of(case: dict[str, Any]) -> dict[str, Any]:
    """The drafting settings in our names; k of vLLM is a chain of k drafts."""
    config = case["draft_config"] or {}
    return {
        "num_draft_steps": config.get("steps", config.get("k")),
        "top_k": config.get("topk"),
        "num_verify_tokens": config.get("draft_tokens", config["k"] + 1 if "k" in config else None),
        "method": config.get("method"),
        "draft_model": config.get("draft"),
    }


def facts_of(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts file of one report."""
    first = cases[0]
    model: Any = first["model"]
    moe = next((case["moe"] for case in cases if "moe" in case), None)
    if moe is not None:
        model = {"name": model, "num_experts": moe["E"], "num_experts_per_token": moe["K"]}
    top = {"server": first["engine"], "model": model, "hardware": first["hardware"]}
    seen: dict[str, dict[str, Any]] = {}
    for case in cases:
        for arm in arms_of(case):
            seen.setdefault(arm["label"], arm)
    return {key: value for key, value in top.items() if value is not None} | {"arms": list(seen.values())}


@cache
def answer_of_report(ref: str) -> Answer:
    """The diagnosis of everything that one report holds."""
    cases = [case for case in CASES if case["ref"] == ref]
    return answer_report(make_facts(facts_of(cases), ref))
