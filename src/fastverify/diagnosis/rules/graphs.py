"""Rules on CUDA graphs: not replayed, downgraded, or captured for fewer rows than a verify pass has.

Losing graphs costs about four times per small all-reduce (SGLang on 2 RTX PRO: 4.5 us in a graph, 18.7 us without).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report

_EAGER_FLAGS = ("enforce-eager", "disable-cuda-graph", "disable-decode-cuda-graph")
_SOURCE = "aiconfigurator's RTX PRO table: 4.5 us per all-reduce in a graph, 18.7 us eager"
# Arbitrary: a few eager passes at the start are normal.
MIN_GRAPH_SHARE = 0.9


def not_replayed(report: Report) -> Iterator[Finding]:
    """R-GRAPH: the log or the flags say that decoding runs eagerly."""
    share = report.log.cuda_graph_share
    off = [flag for flag in _EAGER_FLAGS if report.flag(flag) is True]
    if off:
        title = f"CUDA graphs are off: --{off[0]}."
    elif report.log.cuda_graph is False or (share is not None and share < MIN_GRAPH_SHARE):
        title = "Decode passes run without CUDA graphs" + (f" {(1 - share) * 100:.0f} % of the time." if share else ".")
    else:
        return
    yield Finding(
        rule="R-GRAPH",
        title=title,
        numbers={} if share is None else {"cuda_graph_share": share},
        threshold=MIN_GRAPH_SHARE,
        threshold_source=_SOURCE,
        confidence="high",
        evidence=report.evidence_named("cuda_graph", "cuda_graph_share"),
        next="Turn graphs on, with capture sizes that cover batch x verify rows.",
        experiments=("graphs.on",),
    )


def mode_changed(report: Report) -> Iterator[Finding]:
    """R-GRAPH: the server resolved another graph mode than was asked for."""
    asked, got = report.log.cuda_graph_mode_requested, report.log.cuda_graph_mode
    if asked is None or got is None or asked.upper() == got.upper():
        return
    yield Finding(
        rule="R-GRAPH",
        title=f"The server runs CUDA graph mode {got}, not {asked}.",
        numbers={},
        threshold=0.0,
        threshold_source="resolved settings must be the requested ones",
        confidence="high",
        evidence=report.evidence_named("cuda_graph_mode"),
        next="Read the warning beside it in the log: an attention backend or the drafter took the full graphs away.",
    )


def batch_above_capture(report: Report) -> Iterator[Finding]:
    """R-GRAPH: a verify pass has more rows, or a batch more requests, than any captured graph."""
    limit = report.log.cuda_graph_max_batch or _number(report.flag("cuda-graph-max-bs", "cuda-graph-max-bs-decode"))
    running = report.log.max_running_requests or _number(report.flag("max-running-requests"))
    wanted = max([arm.batch for arm in report.own_arms() if arm.facts.batch] or [running or 0])
    what = "requests"
    rows_limit = largest_capture_rows(report)
    if rows_limit is not None:
        limit, what = rows_limit, "rows"
        wanted = max((arm.batch * (arm.rows or 1) for arm in report.own_arms()), default=0)
    if limit is None or wanted <= limit:
        return
    yield Finding(
        rule="R-GRAPH",
        title=f"Graphs are captured for up to {limit} {what}, decoding has {wanted}: the rest runs eagerly.",
        numbers={"captured": float(limit), "needed": float(wanted)},
        threshold=float(limit),
        threshold_source="largest captured size",
        confidence="high" if what == "rows" else "medium",
        evidence=report.evidence_named("batch", "num_verify_tokens", "cuda_graph_max_batch", "max_running_requests"),
        next="Raise the largest capture size, or limit the running requests.",
        experiments=("graphs.bigger",),
    )


def largest_capture_rows(report: Report) -> int | None:
    """Rows of vLLM's largest captured graph; None where nobody told it."""
    sizes = report.flag("cudagraph-capture-sizes", "cudagraph_capture_sizes")
    if sizes is None:
        config = report.flag("compilation-config", "cc")
        try:
            document = json.loads(config) if isinstance(config, str) else {}
        except json.JSONDecodeError:
            return None
        found = document.get("cudagraph_capture_sizes") if isinstance(document, dict) else None
        return max((s for s in found if isinstance(s, int)), default=None) if isinstance(found, list) else None
    words = str(sizes).replace("[", " ").replace("]", " ").replace(",", " ").split()
    return max((int(word) for word in words if word.isdigit()), default=None)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
