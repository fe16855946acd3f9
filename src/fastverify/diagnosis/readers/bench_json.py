"""Result files of benchmarks: `vllm bench serve`, SGLang's (serving, one batch, speculative sweep), AIPerf, GuideLLM.

Each has its own names for the same few numbers, so there is a small function for each, chosen by the keys that it must
have. Acceptance lengths of all of them hold the bonus token. Sources: vLLM 0.33.0, SGLang 0.5.23, AIPerf 0.5 to 0.14,
GuideLLM 0.3 to 0.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastverify.diagnosis.readers.arm_names import arm_from_name
from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import AnyArm, Rate, Reading, ReadingBuilder, number, positive, whole
from fastverify.diagnosis.readers.server_info import add_server_info

KIND = "benchmark result"
MAX_RESULTS = 2000
Result = Mapping[str, Any]


def read_bench_json(document: Document) -> Reading | None:
    """A rate for every result of a file; None for JSON of another kind."""
    value = document.json
    results = value if isinstance(value, list) else [value]
    builder = ReadingBuilder(KIND, document.source)
    for result in results[:MAX_RESULTS]:
        if isinstance(result, dict):
            reader = next((read for keys, read in _READERS if keys <= result.keys()), None)
            if reader is not None:
                reader(builder, result, document)
    return builder.build() if builder.rates or builder.notes else None


def _read_serving(builder: ReadingBuilder, result: Result, document: Document) -> None:
    """vLLM and SGLang: they share the names of their common ancestor."""
    length = positive(result.get("spec_decode_acceptance_length")) or positive(result.get("accept_length"))
    positions = result.get("spec_decode_per_position_acceptance_rates")
    # SGLang's result has the key even without speculation, and then null.
    arm: AnyArm = "plain" if "accept_length" in result else arm_from_name(document.source)
    batch = whole(result.get("max_concurrency")) or max(1, round(positive(result.get("concurrency")) or 1))
    _add(
        builder,
        document,
        arm="speculative" if length else arm,
        tok_s=positive(result.get("output_throughput")),
        word='"output_throughput"',
        batch=batch,
        length=length,
        positions=positions if isinstance(positions, list) else [],
    )
    arm = builder.rates[-1].arm if builder.rates else arm
    builder.add("tpot_ms", positive(result.get("mean_tpot_ms")), document.line_of("mean_tpot_ms"), unit="ms", arm=arm)
    itl_ms = positive(result.get("median_itl_ms")) or positive(result.get("mean_itl_ms"))
    builder.add("itl_ms", itl_ms, document.line_of("itl_ms"), unit="ms", arm=arm)
    share = number(result.get("spec_decode_acceptance_rate"))
    if share is not None and 0 <= share <= 100:
        line = document.line_of("spec_decode_acceptance_rate")
        builder.add("accept_rate", share / 100, line, unit="share", arm="speculative")
    if isinstance(result.get("dataset_name"), str):
        builder.add("workload", result["dataset_name"], document.line_of('"dataset_name"'), arm=arm)
    if isinstance(result.get("server_info"), dict):
        add_server_info(builder, result["server_info"], document)


def _read_one_batch(builder: ReadingBuilder, result: Result, document: Document) -> None:
    length = positive(result.get("acc_length"))
    _add(
        builder,
        document,
        arm="speculative" if length else "plain",
        tok_s=positive(result.get("output_throughput")),
        word='"output_throughput"',
        batch=whole(result.get("batch_size")) or 1,
        length=length,
    )


def _read_speculative_sweep(builder: ReadingBuilder, result: Result, document: Document) -> None:
    """`bench_speculative.py`: acceptance length over step time, per request."""
    length, step_s = positive(result.get("acc_length")), positive(result.get("step_time"))
    batch, steps = whole(result.get("batch_size")) or 1, whole(result.get("steps"))
    top_k, tokens = whole(result.get("topk")), whole(result.get("num_draft_tokens"))
    if step_s is None:
        return
    _add(
        builder,
        document,
        arm="speculative" if steps else "plain",
        tok_s=(length or 1.0) / step_s * batch,
        word='"step_time"',
        batch=batch,
        length=length if steps else None,
        settings={"num_draft_steps": steps, "top_k": top_k, "num_verify_tokens": tokens} if steps else {},
    )


def _read_aiperf(builder: ReadingBuilder, result: Result, document: Document) -> None:
    length = _average(result.get("spec_decode_acceptance_length"))
    percent = _average(result.get("spec_decode_overall_draft_acceptance_rate"))
    if percent is not None and percent <= 100:
        line = document.line_of("spec_decode_overall_draft_acceptance_rate")
        builder.add("accept_rate", percent / 100, line, unit="share", arm="speculative")
    loadgen = _nested(result, "input_config", "loadgen")
    tok_s = _average(result.get("output_token_throughput"))
    _add(
        builder,
        document,
        arm="speculative" if length else arm_from_name(document.source),
        tok_s=tok_s,
        word='"output_token_throughput"',
        batch=whole(loadgen.get("concurrency")) or 1,
        length=length,
    )


def _read_guidellm(builder: ReadingBuilder, result: Result, document: Document) -> None:
    benchmarks = result["benchmarks"]
    for benchmark in benchmarks[:MAX_RESULTS] if isinstance(benchmarks, list) else []:
        if not isinstance(benchmark, dict):
            continue
        metrics = _nested(benchmark, "metrics")
        concurrency = _successful(metrics.get("request_concurrency"))
        _add(
            builder,
            document,
            arm=arm_from_name(document.source),
            tok_s=_successful(metrics.get("output_tokens_per_second")),
            word='"output_tokens_per_second"',
            batch=max(1, round(concurrency or 1)),
        )


_READERS: tuple[tuple[set[str], Callable[[ReadingBuilder, Result, Document], None]], ...] = (
    ({"step_time", "acc_length"}, _read_speculative_sweep),
    ({"acc_length", "output_throughput"}, _read_one_batch),
    ({"output_throughput", "mean_ttft_ms"}, _read_serving),
    ({"output_token_throughput"}, _read_aiperf),
    ({"benchmarks"}, _read_guidellm),
)


def _add(
    builder: ReadingBuilder,
    document: Document,
    *,
    arm: AnyArm,
    tok_s: float | None,
    word: str,
    batch: int,
    length: float | None = None,
    positions: list[Any] | tuple[()] = (),
    settings: Mapping[str, int | None] | None = None,
) -> None:
    if tok_s is None:
        return
    shares = [share for share in map(number, positions) if share is not None and 0 <= share <= 1]
    rate = Rate(
        arm=arm,
        total_tok_s=tok_s,
        batch=batch,
        source=document.source,
        line=document.line_of(word),
        accept_length=length if length is not None and length >= 1 else None,
        accept_rate_per_position=tuple(shares),
        is_benchmark=True,
        settings={name: value for name, value in (settings or {}).items() if value is not None},
    )
    builder.rates.append(rate)
    if arm == "both":
        builder.notes.append(
            f"{document.source}: the result does not say whether the server drafted. Name the file plain-... or "
            "spec-..., so that its rate counts for an arm."
        )


def _average(value: Any) -> float | None:
    return positive(value.get("avg")) if isinstance(value, dict) else None


def _successful(value: Any) -> float | None:
    found = _nested(value, "successful")
    return positive(found.get("mean")) or positive(found.get("median"))


def _nested(value: Any, *names: str) -> Mapping[str, Any]:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
