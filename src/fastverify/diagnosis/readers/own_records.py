"""Files that fastverify itself writes: benchmark records of all-reduces, and measurements of a tuning campaign.

A benchmark tells what every backend takes on this machine, not which of them a server uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from fastverify.diagnosis.readers.document import Document, document_of
from fastverify.diagnosis.readers.reading import Rate, Reading, ReadingBuilder, positive, whole
from fastverify.diagnosis.readers.topology import read_topology
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement

BENCH_KIND, MEASUREMENT_KIND = "all-reduce benchmark", "measurement"
# Names of the benchmark to those of the catalogue and the published tables. `auto` is ours as it chooses by size.
_CATALOGUE_NAMES = {
    "auto": "fastverify",
    "shm": "fastverify",
    "vllm": "custom",
    "symm_mem_one_shot": "symm-mem",
    "symm_mem_two_shot": "symm-mem",
    "symm_mem_multimem": "symm-mem",
    "pcie_ipc": "pcie-ipc",
}
_VERIFY_PHASES = ("verify_compute", "verify_all_reduce", "verify_gather")


def is_bench_record(value: Any) -> bool:
    """Whether a JSON value is what `fastverify bench --json` prints."""
    rows = value.get("rows") if isinstance(value, dict) else None
    return isinstance(rows, list) and any(isinstance(row, dict) and "num_bytes" in row for row in rows)


def is_measurement(value: Any) -> bool:
    """Whether a JSON value is a measurement of both arms."""
    return isinstance(value, dict) and isinstance(value.get("arms"), dict) and "requested_settings" in value


def read_bench_record(document: Document) -> Reading | None:
    """Time of one all-reduce by backend and message size, alone and with its norm, and the machine it was taken on."""
    if not is_bench_record(document.json):
        return None
    builder = ReadingBuilder(BENCH_KIND, document.source)
    for (table, backend, size), (us, name) in _fastest(document.json["rows"]).items():
        builder.add(f"bench.{table}.{backend}.{size}", us, document.line_of(f'"backend": "{name}"'), unit="us")
    settings = document.json.get("settings")
    if isinstance(settings, dict):
        line = document.line_of('"world_size"')
        builder.add("bench.world_size", whole(settings.get("world_size")), line)
        builder.add("tp", whole(settings.get("world_size")), line)
    machine = document.json.get("machine")
    if isinstance(machine, dict) and isinstance(machine.get("gpus"), dict):
        _add_gpus(builder, machine["gpus"], document)
    return builder.build()


def _fastest(rows: Iterable[Any]) -> dict[tuple[str, str, int], tuple[float, str]]:
    """Table, backend and bytes to the least time, and the row's own name; ways of one backend are one."""
    found: dict[tuple[str, str, int], tuple[float, str]] = {}
    for row in rows:
        if not isinstance(row, dict) or not _is_as_servers_run_it(row):
            continue
        size, us, name = whole(row.get("num_bytes")), positive(row.get("median_us")), str(row.get("backend"))
        if size and us and row.get("correct", True):
            # The way of two steps, an all-reduce and a norm of its own, is the same backend.
            backend = name.removesuffix("+norm")
            key = ("fused_us" if row.get("fused") else "us", _CATALOGUE_NAMES.get(backend, backend), size)
            found[key] = min(found.get(key, (us, name)), (us, name))
    return found


def _is_as_servers_run_it(row: Mapping[str, Any]) -> bool:
    """Inside a graph where the record says, and NCCL as it comes."""
    return row.get("mode", "graph") == "graph" and row.get("setting") in (None, "default")


def _add_gpus(builder: ReadingBuilder, gpus: Mapping[str, Any], document: Document) -> None:
    """GPU, driver and links, from what the record copied of nvidia-smi."""
    names = gpus.get("names")
    if isinstance(names, list) and names:
        builder.add("hardware.gpu", names[0], document.line_of('"names"'))
        builder.add("hardware.num_gpus", len(names), document.line_of('"names"'))
    builder.add("hardware.driver_version", gpus.get("driver"), document.line_of('"driver"'))
    topology = gpus.get("topology")
    if isinstance(topology, list):
        reading = read_topology(document_of("\n".join(map(str, topology)), f"{document.source}, topology"))
        known = {piece.name for piece in builder.evidence}
        builder.evidence += [piece for piece in (reading.evidence if reading else ()) if piece.name not in known]


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
