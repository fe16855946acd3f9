"""One answer of a server that tells how its own drafts fared: SGLang's `meta_info`, vLLM's `metrics`.

A single request is a small sample, so anything that saw more traffic outranks it. Names of SGLang differ by release:
only counts whose meaning never changed are used. Sources: SGLang 0.5.5 and 0.5.23; vLLM pull request 48915.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder, number, positive

KIND = "answer of a server"


def read_response(document: Document) -> Reading | None:
    """Acceptance length of one answer, or of each in a list."""
    value = document.json
    builder = ReadingBuilder(KIND, document.source)
    for answer in (value if isinstance(value, list) else [value])[:1000]:
        if isinstance(answer, dict):
            _add_sglang(builder, answer.get("meta_info"), document)
            metrics = answer.get("metrics")
            _add_vllm(builder, metrics.get("speculative_decoding") if isinstance(metrics, dict) else None, document)
    return builder.build() if builder.evidence else None


def _add_sglang(builder: ReadingBuilder, info: Any, document: Document) -> None:
    if not isinstance(info, Mapping):
        return
    tokens, passes = positive(info.get("completion_tokens")), positive(info.get("spec_verify_ct"))
    if tokens and passes and tokens >= passes:
        line = document.line_of("spec_verify_ct")
        builder.add("accept_length", tokens / passes, line, unit="tokens", arm="speculative")


def _add_vllm(builder: ReadingBuilder, stats: Any, document: Document) -> None:
    if not isinstance(stats, Mapping):
        return
    length, rate = number(stats.get("mean_acceptance_length")), number(stats.get("draft_acceptance_rate"))
    line = document.line_of("mean_acceptance_length")
    if length is not None and length >= 1:
        builder.add("accept_length", length, line, unit="tokens", arm="speculative")
    if rate is not None and 0 <= rate <= 1:
        builder.add("accept_rate", rate, line, unit="share", arm="speculative")
