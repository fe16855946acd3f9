"""Files that fastverify itself writes: benchmark records of all-reduces, and measurements of a tuning campaign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Rate, Reading, ReadingBuilder, positive, whole
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement

BENCH_KIND, MEASUREMENT_KIND = "all-reduce benchmark", "measurement"
# What servers use by themselves; the other backends of a record are what could be won.
_BASELINES = ("nccl", "gloo")
_VERIFY_PHASES = ("verify_compute", "verify_all_reduce", "verify_gather")


def is_bench_record(value: Any) -> bool:
    """Whether a JSON value is what `fastverify bench --json` prints."""
    rows = value.get("rows") if isinstance(value, dict) else None
    return isinstance(rows, list) and any(isinstance(row, dict) and "num_bytes" in row for row in rows)


def is_measurement(value: Any) -> bool:
    """Whether a JSON value is a measurement of both arms."""
    return isinstance(value, dict) and isinstance(value.get("arms"), dict) and "requested_settings" in value


def read_bench_record(document: Document) -> Reading | None:
    """Time of one all-reduce by message size, of the backend that servers use by themselves."""
    if not is_bench_record(document.json):
        return None
    builder = ReadingBuilder(BENCH_KIND, document.source)
    rows = [row for row in document.json["rows"] if isinstance(row, dict)]
    names = [row.get("backend") for row in rows]
    backend = next((name for name in _BASELINES if name in names), names[0] if names else None)
    line = document.line_of(f'"{backend}"')
    for row in rows:
        size, us = whole(row.get("num_bytes")), positive(row.get("median_us"))
        if _is_plain_sum(row, backend) and size and us and row.get("correct", True):
            builder.add(f"all_reduce_us.{size}", us, line, unit="us")
    builder.add("all_reduce_backend", backend, line)
    settings = document.json.get("settings")
    if isinstance(settings, dict):
        builder.add("tp", whole(settings.get("world_size")), document.line_of('"world_size"'))
    return builder.build()


def _is_plain_sum(row: Mapping[str, Any], backend: str | None) -> bool:
    """As a server runs it: no fused norm, inside a graph where the record says, NCCL as it comes."""
    return (
        row.get("backend") == backend
        and not row.get("fused")
        and row.get("mode", "graph") == "graph"
        and row.get("setting") in (None, "default")
    )


def read_measurement(document: Document) -> Reading | None:
    """Rates, acceptance and anatomy of both arms."""
    if not is_measurement(document.json):
        return None
    builder = ReadingBuilder(MEASUREMENT_KIND, document.source)
    try:
        measurement = ServerMeasurement.model_validate(document.json)
    except ValidationError as error:
        builder.notes.append(f"{document.source} is no measurement of this release: {error.errors()[0]['msg']}.")
        return builder.build()
    builder.add("server", "builtin", document.line_of('"settings"'))
    for arm in measurement.arms.values():
        _add_arm(builder, arm, document)
    return builder.build()


def _add_arm(builder: ReadingBuilder, arm: ArmMeasurement, document: Document) -> None:
    line = document.line_of(f'"{arm.arm}"')
    speculates = arm.arm == "speculative"
    rate = Rate(
        arm=arm.arm,
        total_tok_s=arm.tok_s * arm.batch,
        batch=arm.batch,
        source=builder.source,
        line=line,
        num_samples=len(arm.tok_s_samples),
        accept_length=arm.accept_length if speculates else None,
        accept_rate_per_position=arm.correct_drafts_per_position if speculates else (),
        is_benchmark=True,
    )
    builder.rates.append(rate)
    for name, ms in _phases(arm.anatomy_ms, speculates=speculates).items():
        builder.add(name, ms, line, unit="ms", arm=arm.arm)
    if speculates:
        count = arm.all_reduces_per_verify
        builder.add("all_reduces_per_verify", round(count) if count else None, line, arm=arm.arm)
        builder.add("num_verify_tokens", round(arm.num_proposed_drafts) + 1, line, arm=arm.arm)


def _phases(anatomy_ms: Mapping[str, float], *, speculates: bool) -> dict[str, float]:
    if not speculates:
        return {name: ms for name, ms in {"plain_all_reduce_ms": anatomy_ms.get("plain_all_reduce", 0.0)}.items() if ms}
    found = {f"{phase}_ms": ms for phase, ms in anatomy_ms.items() if phase != "verify_gather"}
    verify = sum(anatomy_ms.get(phase, 0.0) for phase in _VERIFY_PHASES)
    return found | ({"verify_ms": verify} if verify else {})
