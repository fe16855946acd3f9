"""vLLM's names on its metrics page, converted to ours. Source: vLLM 0.11.0 and 0.33.0, which agree.

`num_drafts` counts only requests that had drafts in a step, so the acceptance length of n-gram drafting, which often
has none, is over the passes that drafted. Inter-token latency counts engine outputs: with speculation it is a cycle.
"""

from __future__ import annotations

from fastverify.servers.metrics import MetricsPage, SpecStats

PREFIX = "vllm:"
_SPEC = "vllm:spec_decode_num_"


def read_spec_stats(page: MetricsPage) -> SpecStats:
    """Counts of speculation; vLLM's accepted tokens have no bonus token, as ours."""
    positions = page.by_label(f"{_SPEC}accepted_tokens_per_pos_total", "position")
    ordered = sorted((int(key), count) for key, count in positions.items() if key.isdecimal())
    return SpecStats(
        num_verify_passes=round(page.total(f"{_SPEC}drafts_total")),
        num_proposed_drafts=round(page.total(f"{_SPEC}draft_tokens_total")),
        num_correct_drafts=round(page.total(f"{_SPEC}accepted_tokens_total")),
        num_correct_drafts_per_position=tuple(round(count) for _, count in ordered),
    )


def read_step_ms(page: MetricsPage) -> float | None:
    """Mean time between two outputs of one request: a plain step, or a cycle with speculation."""
    return _mean_ms(page, "vllm:inter_token_latency_seconds") or _mean_ms(page, "vllm:time_per_output_token_seconds")


def read_tpot_ms(page: MetricsPage) -> float | None:
    """Mean time per output token of a request after its first one."""
    return _mean_ms(page, "vllm:request_time_per_output_token_seconds")


def _mean_ms(page: MetricsPage, histogram: str) -> float | None:
    count = page.total(f"{histogram}_count")
    return page.total(f"{histogram}_sum") / count * 1000 if count > 0 else None
