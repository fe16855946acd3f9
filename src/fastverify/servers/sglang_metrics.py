"""SGLang's names on its metrics page, converted to ours. Sources: SGLang 0.5.5 and 0.5.23.

The acceptance length is a gauge of the last interval and holds the bonus token, as ours; the acceptance rate is left
alone, since its definition changed. Seconds per kind of forward exist with SGLANG_ENABLE_METRICS_DEVICE_TIMER=1.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastverify.servers.metrics import MetricsPage

PREFIX = "sglang:"
# Kind of forward -> phase; a cycle has one of each.
PHASES: Mapping[str, str] = {"eagle_draft": "draft", "target_verify": "verify", "eagle_draft_extend": "extend"}


def read_accept_length(page: MetricsPage) -> float | None:
    """Mean over the ranks that report one; None without speculation."""
    lengths = [value for value in page.values.get("sglang:spec_accept_length", {}).values() if value >= 1]
    return sum(lengths) / len(lengths) if lengths else None


def read_num_verify_tokens(page: MetricsPage) -> int | None:
    """Rows per request of a verify pass, on pages of releases that tell."""
    counts = [value for value in page.values.get("sglang:spec_num_draft_tokens", {}).values() if value >= 2]
    return round(counts[0]) if counts else None


def read_phases_ms(page: MetricsPage) -> dict[str, float]:
    """Milliseconds per request and verify pass, by phase: those of a cycle where one request ran at a time."""
    passes = page.total("sglang:spec_verify_calls_total")
    seconds = page.by_label("sglang:forward_execution_seconds_total", "category")
    if passes <= 0:
        return {}
    return {phase: seconds[kind] / passes * 1000 for kind, phase in PHASES.items() if seconds.get(kind, 0) > 0}


def read_rate(page: MetricsPage) -> tuple[float, int] | None:
    """Tokens per second of all ranks, and running requests, as last logged; None where nothing ran just now."""
    tok_s, batch = page.total("sglang:gen_throughput"), round(page.total("sglang:num_running_reqs"))
    return (tok_s, batch) if tok_s > 0 and batch > 0 else None
