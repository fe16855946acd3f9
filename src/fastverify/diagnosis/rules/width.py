"""Rules on the width of a verify pass: wide trees on mixtures of experts, and settings that no chain can have."""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.model_sizes import expert_growth
from fastverify.diagnosis.report import Report

# Source: rule R-TREE of the field reports; SpecForge#339 and AngelSlim#9.
MIN_TREE_ROWS = 16
# Arbitrary: twice that; at 32 rows a pass touches nearly every expert of a 128-expert layer.
SURE_TREE_ROWS = 32


def tree_on_experts(report: Report) -> Iterator[Finding]:
    """R-TREE: every row of a wide tree brings its own experts to read."""
    for arm in report.own_arms():
        rows = arm.rows or 0
        if not arm.is_tree or rows < MIN_TREE_ROWS or not report.model.is_moe:
            continue
        experts, chosen = report.model.num_experts or 128, report.model.num_experts_per_token or 8
        growth = expert_growth(experts, chosen, rows)
        yield Finding(
            rule="R-TREE",
            title=f"A tree of {rows} rows reads up to {growth:.1f} times the experts of a plain step.",
            numbers={"num_verify_tokens": float(rows), "expert_growth_bound": growth},
            threshold=MIN_TREE_ROWS,
            threshold_source="field reports: published losses of trees on mixtures of experts",
            confidence="high" if rows >= SURE_TREE_ROWS else "medium",
            evidence=report.evidence_named("num_verify_tokens", "top_k"),
            next="Try a chain of 2 to 4 drafts: top_k 1.",
            arms=(arm.name,),
            experiments=("draft.chain3",),
        )


def rows_unlike_chain(report: Report) -> Iterator[Finding]:
    """R-TREE: with top_k 1 the rows are steps + 1; the server changes any other number silently."""
    for arm in report.own_arms():
        facts = arm.facts
        if facts.top_k != 1 or facts.num_verify_tokens is None or facts.num_draft_steps is None:
            continue
        if facts.num_verify_tokens == facts.num_draft_steps + 1:
            continue
        yield Finding(
            rule="R-TREE",
            title=f"top_k 1 with {facts.num_draft_steps} steps verifies {facts.num_draft_steps + 1} rows, "
            f"not {facts.num_verify_tokens}.",
            numbers={"num_draft_steps": facts.num_draft_steps, "num_verify_tokens": facts.num_verify_tokens},
            threshold=facts.num_draft_steps + 1,
            threshold_source="a chain has one row per draft and one for the current token",
            confidence="high",
            evidence=report.evidence_named("top_k", "num_draft_steps", "num_verify_tokens"),
            next="Set the number of verify tokens to steps + 1, or use top_k above 1.",
            arms=(arm.name,),
        )
