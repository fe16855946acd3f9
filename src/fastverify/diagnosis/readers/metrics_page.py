"""A metrics page of SGLang, vLLM or the built-in server, as `curl /metrics` prints it, also inside other text.

One page holds everything since the server's start, warm-up included, so its acceptance length is that of all traffic.
The names are converted in servers/.
"""

from __future__ import annotations

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Rate, Reading, ReadingBuilder
from fastverify.errors import ServerError
from fastverify.servers import metrics, sglang_metrics, vllm_metrics
from fastverify.servers.metrics import MetricsPage, SpecStats
from fastverify.servers.server import Arm

KIND = "metrics page"
PREFIXES = ("sglang:", "vllm:", "fastverify:")
# Arbitrary: a page has a few thousand lines; histograms with many labels have more.
MAX_LINES = 100_000


def read_metrics_page(document: Document) -> Reading | None:
    """Speculation and step times of a page; None for a text without a sample line."""
    lines = [(number, line) for number, line in document.lines if line.startswith(PREFIXES) and _is_sample(line)]
    if not lines:
        return None
    builder = ReadingBuilder(KIND, document.source)
    try:
        page = metrics.parse_metrics("\n".join(line.strip() for _, line in lines[:MAX_LINES]) + "\n")
    except ServerError as error:
        builder.notes.append(f"{document.source}: {error}")
        return builder.build()
    server = lines[0][1].partition(":")[0]
    builder.add("server", {"fastverify": "builtin"}.get(server, server), lines[0][0])
    read = {"vllm": _read_vllm, "sglang": _read_sglang, "fastverify": _read_builtin}[server]
    read(builder, page, document)
    return builder.build()


def _is_sample(line: str) -> bool:
    """`name{labels} value`, which a sentence about a metric is not."""
    name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
    return name.replace(":", "_").isidentifier() and (rest.rstrip()[-1:].isdigit() or rest.strip() in ("NaN", "+Inf"))


def _read_vllm(builder: ReadingBuilder, page: MetricsPage, document: Document) -> None:
    stats = vllm_metrics.read_spec_stats(page)
    arm: Arm = "speculative" if stats.num_verify_passes else "plain"
    _add_stats(builder, stats, document.line_of("spec_decode_num_drafts"))
    line = document.line_of("inter_token_latency_seconds_sum") or document.line_of("per_output_token_seconds_sum")
    builder.add("itl_ms", vllm_metrics.read_step_ms(page), line, unit="ms", arm=arm)
    builder.add("tpot_ms", vllm_metrics.read_tpot_ms(page), line, unit="ms", arm=arm)


def _read_sglang(builder: ReadingBuilder, page: MetricsPage, document: Document) -> None:
    length = sglang_metrics.read_accept_length(page)
    line = document.line_of("sglang:spec_accept_length")
    builder.add("accept_length", length, line, unit="tokens", arm="speculative")
    tokens = sglang_metrics.read_num_verify_tokens(page)
    builder.add("num_verify_tokens", tokens, document.line_of("sglang:spec_num_draft_tokens"), arm="speculative")
    if (rate := sglang_metrics.read_rate(page)) is not None:
        arm: Arm = "plain" if length is None else "speculative"
        line = document.line_of("sglang:gen_throughput")
        builder.rates.append(Rate(arm, rate[0], rate[1], document.source, line, accept_length=length))
    phases = sglang_metrics.read_phases_ms(page)
    for phase, ms in phases.items():
        line = document.line_of("sglang:forward_execution_seconds_total")
        builder.add(f"{phase}_ms", ms, line, unit="ms", arm="speculative")
    if phases:
        builder.notes.append(
            f"{document.source}: seconds per forward are divided by request passes, so they are those of a cycle only "
            "if one request ran at a time."
        )


def _read_builtin(builder: ReadingBuilder, page: MetricsPage, document: Document) -> None:
    _add_stats(builder, metrics.read_spec_stats(page), document.line_of("fastverify:spec_num_verify_passes"))


def _add_stats(builder: ReadingBuilder, stats: SpecStats, line: int | None) -> None:
    if not stats.num_verify_passes:
        return
    builder.add("accept_length", stats.accept_length, line, unit="tokens", arm="speculative")
    if stats.num_proposed_drafts:
        rate = stats.num_correct_drafts / stats.num_proposed_drafts
        builder.add("accept_rate", rate, line, unit="share", arm="speculative")
    for count in stats.num_correct_drafts_per_position:
        share = count / stats.num_verify_passes
        builder.add("accept_rate_per_position", share, line, unit="share", arm="speculative")
