"""SGLang's `/server_info` (earlier `/get_server_info`): resolved settings, version, acceptance, step times.

`step_time_dict` exists with SGLANG_RECORD_STEP_TIME=1: seconds per scheduler step by number of running requests, so it
is a plain step or a whole cycle, and gives a rate. Sources: SGLang 0.5.5 (values at the top) and 0.5.23 (values in
`internal_states`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Rate, Reading, ReadingBuilder, number, whole
from fastverify.diagnosis.readers.server_settings import add_resolved, arm_of, canonical

KIND = "SGLang server_info"


def is_server_info(value: Any) -> bool:
    """Whether a JSON value is what that endpoint answers."""
    return isinstance(value, dict) and "tp_size" in value and ("internal_states" in value or "version" in value)


def read_server_info(document: Document) -> Reading | None:
    """Settings and live state."""
    if not is_server_info(document.json):
        return None
    builder = ReadingBuilder(KIND, document.source)
    add_server_info(builder, document.json, document)
    return builder.build()


def add_server_info(builder: ReadingBuilder, info: Mapping[str, Any], document: Document) -> None:
    """The facts of one answer, which may also stand inside a benchmark's result."""
    builder.add("server", "sglang", document.line_of('"tp_size"'))
    if isinstance(info.get("version"), str):
        builder.add("server_version", info["version"], document.line_of('"version"'))
    settings = {name: value for name, value in info.items() if name not in ("internal_states", "version")}
    add_resolved(builder, "sglang", settings, document.line_of('"tp_size"'))
    speculates = arm_of("sglang", canonical("sglang", settings)) == "speculative"
    for state in _states(info):
        length = number(state.get("avg_spec_accept_length"))
        has_length = speculates and length is not None and length >= 1
        if has_length:
            line = document.line_of("avg_spec_accept_length")
            builder.add("accept_length", length, line, unit="tokens", arm="speculative")
        variables = state.get("env_vars")
        for name, value in variables.items() if isinstance(variables, dict) else ():
            if isinstance(value, str) and str(name).startswith(("NCCL_", "SGLANG_", "CUDA_", "FLASHINFER_")):
                builder.add(f"launch.env.{name}", value, document.line_of(f'"{name}"'))
        _add_step_times(builder, state, document, length if has_length else None, speculates=speculates)


def _states(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    states = info.get("internal_states")
    found: list[Mapping[str, Any]] = []
    if isinstance(states, list):
        found = [state for state in states if isinstance(state, dict)]
    return found or [info]


def _add_step_times(
    builder: ReadingBuilder, state: Mapping[str, Any], document: Document, length: float | None, *, speculates: bool
) -> None:
    times = state.get("step_time_dict")
    if not isinstance(times, dict) or (speculates and length is None):
        return
    for key, samples in times.items():
        batch = whole(key)
        seconds = [s for s in map(number, samples if isinstance(samples, list) else []) if s is not None and s > 0]
        if batch and seconds:
            rate = Rate(
                arm="speculative" if speculates else "plain",
                total_tok_s=batch * (length or 1.0) / median(seconds),
                batch=batch,
                source=builder.source,
                line=document.line_of("step_time_dict"),
                num_samples=len(seconds),
                accept_length=length,
            )
            builder.rates.append(rate)
