"""Rules on engagement: what was asked for must show in resolved settings, the log, or the counters.

A setting without effect measures as "no gain" and sends people on the wrong way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report

# Environment variable, what the log says when it took effect.
_PROOFS = (
    ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "Initialized FlashInfer PCIe IPC"),
    ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "pcie"),
)


def draft_ranks(report: Report) -> Iterator[Finding]:
    """R-DRAFTTP: the draft model was to run on one rank, and still has collectives."""
    if _requested_draft_tp(report) != 1:
        return
    for arm in report.own_arms():
        count = arm.facts.draft_collectives_per_cycle
        if not count:
            continue
        yield Finding(
            rule="R-DRAFTTP",
            title=f"Draft tensor parallelism 1 was asked for, but a cycle has {count:.0f} draft collectives.",
            numbers={"draft_collectives_per_cycle": count},
            threshold=0.0,
            threshold_source="a draft model on one rank has none (vllm#31345, vllm#31886)",
            confidence="high",
            evidence=report.evidence_named("draft_collectives_per_cycle"),
            next="Check the resolved speculative config; the server's version may ignore the setting.",
            arms=(arm.name,),
        )


def flags_changed(report: Report) -> Iterator[Finding]:
    """R-ENGAGE: the server resolved a flag to another value than was given."""
    resolved = {name.replace("-", "_"): value for name, value in report.facts.launch.resolved.items()}
    for name, asked in report.facts.launch.flags.items():
        key = name.replace("-", "_")
        got = resolved.get(key, asked)
        if not (_is_comparable(asked) and _is_comparable(got)) or _text(got) == _text(asked):
            continue
        yield Finding(
            rule="R-ENGAGE",
            title=f"--{name} was given as {_short(asked)}, the server runs with {_short(got)}.",
            numbers={},
            threshold=0.0,
            threshold_source="resolved settings must be the requested ones",
            confidence="high",
            evidence=report.evidence_named(name, key),
            next="Read the log around the start for the reason, and compare arms only by resolved settings.",
        )


def backend_missing(report: Report) -> Iterator[Finding]:
    """R-ENGAGE: an all-reduce was switched on, and a log that lists backends does not show it."""
    if report.log.all_reduce_backends is None:
        return
    lines = " ".join(report.log.engaged).lower()
    for variable, proof in _PROOFS:
        if (report.env(variable) or "0").lower() not in ("1", "true") or proof.lower() in lines:
            continue
        yield Finding(
            rule="R-ENGAGE",
            title=f"{variable} is set, but the log has no line that it took effect.",
            numbers={},
            threshold=0.0,
            threshold_source=f'the server writes "{proof}" when it does',
            confidence="high",
            evidence=report.evidence_named("all_reduce_backends", "engaged"),
            next="Check world size 2, 4 or 8, dtype bfloat16, CUDA graphs on, FlashInfer 0.7 or newer.",
        )


def _requested_draft_tp(report: Report) -> int | None:
    config = report.facts.launch.flags.get("speculative-config") or report.facts.launch.flags.get("sc")
    try:
        document = json.loads(config) if isinstance(config, str) else None
    except json.JSONDecodeError:
        return None
    value = document.get("draft_tensor_parallel_size") if isinstance(document, dict) else None
    return value if isinstance(value, int) else None


def _is_comparable(value: object) -> bool:
    """Numbers, switches and plain words; documents, lists and paths have several right spellings."""
    text = str(value).strip().lower()
    return bool(text) and text not in ("auto", "none", "null") and not set(text) & set("{}[](), /")


def _text(value: object) -> str:
    """Spelling in which 1, "1", 1.0 and true, "True" are the same."""
    text = str(value).strip().lower()
    try:
        return repr(float(text))
    except ValueError:
        return text


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
