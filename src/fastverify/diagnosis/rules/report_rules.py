"""The list of rules for a report, and what they share: a finding with the report's evidence behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules import (
    acceptance,
    all_reduces,
    arms,
    benchmark,
    engagement,
    graphs,
    platform,
    sweeps,
    versions,
    waiting,
    width,
)

ReportRule = Callable[[Report], Iterable[Finding]]
REPORT_RULES: tuple[ReportRule, ...] = (
    arms.judge_arms,
    arms.fixed_cost_beyond_verify,
    acceptance.fell_between_arms,
    acceptance.random_prompts,
    sweeps.fixed_cost_over_ranks,
    sweeps.fixed_cost_over_width,
    sweeps.draft_cost_over_steps,
    sweeps.same_drafts_faster,
    sweeps.grows_with_context,
    sweeps.crosses_with_batch,
    width.tree_on_experts,
    width.rows_unlike_chain,
    graphs.not_replayed,
    graphs.mode_changed,
    graphs.batch_above_capture,
    all_reduces.gated,
    all_reduces.above_ceiling,
    all_reduces.slower_than_other,
    all_reduces.above_floor,
    all_reduces.slower_than_reference,
    benchmark.faster_backend,
    platform.acs,
    platform.iommu,
    platform.link,
    platform.peer_access,
    platform.atomics,
    waiting.uneven_utilization,
    waiting.spinning,
    waiting.more_ranks_slower,
    engagement.draft_ranks,
    engagement.flags_changed,
    engagement.backend_missing,
    versions.mixed_flashinfer,
    versions.known_bugs,
)
_ORDER = {"high": 0, "medium": 1, "low": 2}


def apply_report_rules(report: Report) -> tuple[Finding, ...]:
    """Every finding, the surest first; one rule says the same of the same arms only once, at its surest."""
    found = sorted((f for rule in REPORT_RULES for f in rule(report)), key=lambda f: _ORDER[f.confidence])
    kept: dict[tuple[str, tuple[str, ...], str], Finding] = {}
    for finding in found:
        kept.setdefault((finding.rule, finding.arms, finding.title), finding)
    return tuple(kept.values())
