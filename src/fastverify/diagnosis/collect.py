"""Puts the readings of all documents together: one set of reported facts, every piece of evidence, every file's fate.

Where sources disagree, the hand-written facts file wins, then what a server resolved, then what it was asked for; the
disagreement is told. A value that no fact can have (a shared host's garbage, a cut number) is left out and told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fastverify.diagnosis.evidence import Evidence
from fastverify.diagnosis.inputs import UnknownFile, read_inputs
from fastverify.diagnosis.paired_rates import arms_of, evidence_of_rates
from fastverify.diagnosis.readers import (
    env_dump,
    launch_command,
    nccl_debug,
    own_records,
    server_info,
    sglang_log,
    trace_profile,
    vllm_log,
)
from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, number
from fastverify.diagnosis.readers.trace_profile import read_trace_files
from fastverify.diagnosis.reported import BenchFacts, LaunchFacts, LogFacts, MachineFacts, ModelFacts, ReportedFacts
from fastverify.diagnosis.sniff import is_facts_file, read_facts, read_text, unknown_reason
from fastverify.errors import TraceFormatError

# What outranks what for the same fact; kinds that are not here come last, in the order given.
RANKS = (
    server_info.KIND,
    own_records.MEASUREMENT_KIND,
    trace_profile.KIND,
    sglang_log.KIND,
    vllm_log.KIND,
    launch_command.KIND,
    nccl_debug.KIND,
    env_dump.KIND,
)
_LISTS = {"accept_rate_per_position", "hardware.gpu_utilization", "hardware.gpu_power_share", "log.all_reduce_backends"}
_GATHERED = {"log.engaged", "log.errors"}
_TABLES = ("launch.flags.", "launch.env.", "launch.resolved.", "hardware.packages.", "all_reduce_us.")
_SECTIONS = {
    "hardware": set(MachineFacts.model_fields),
    "model": set(ModelFacts.model_fields),
    "launch": set(LaunchFacts.model_fields),
    "log": set(LogFacts.model_fields),
    "bench": set(BenchFacts.model_fields),
}
# Facts of an arm that have no place for the plain arm's value.
_SPECULATIVE_ONLY = {"itl_ms", "tpot_ms"}
_MAX_REPEATS = 60


@dataclass(frozen=True)
class Collected:
    """All that was read. `kinds` maps each source to what was found in it."""

    facts: ReportedFacts
    evidence: tuple[Evidence, ...]
    kinds: dict[str, tuple[str, ...]]
    unknown: tuple[UnknownFile, ...]
    notes: tuple[str, ...]


def collect(paths: Sequence[str | Path]) -> Collected:
    """Read files, folders or `-`. Raises ConfigError for a missing path and for a wrong facts file."""
    inputs = read_inputs(paths)
    readings: list[Reading] = []
    for files in inputs.traces:
        try:
            reading = read_trace_files(files)
        except TraceFormatError as error:
            inputs.unknown += [UnknownFile(str(file), str(error)) for file in files]
            continue
        if reading.evidence:
            readings.append(reading)
        else:
            inputs.unknown += [UnknownFile(str(file), " ".join(reading.notes)) for file in files]
    return collect_documents(inputs.documents, inputs.unknown, readings)


def collect_documents(
    documents: Iterable[Document], unknown: Iterable[UnknownFile] = (), more: Iterable[Reading] = ()
) -> Collected:
    """Read documents that are in memory, and join them with readings that exist."""
    readings = list(more)
    written: list[dict[str, Any]] = []
    lost = list(unknown)
    notes: list[str] = []
    for document in documents:
        if document.skipped_bytes:
            notes.append(f"{document.source}: {document.skipped_bytes} bytes in its middle were not read.")
        if is_facts_file(document):
            facts, reading = read_facts(document)
            written.append(facts.model_dump(exclude_unset=True))
            readings.append(reading)
            continue
        found = read_text(document)
        if any(reading.evidence or reading.rates for reading in found):
            readings += found
        else:
            remarks = [note for reading in found for note in reading.notes]
            lost.append(UnknownFile(document.source, " ".join(remarks) or unknown_reason(document)))
    return _together(readings, written, lost, notes)


def _together(
    readings: list[Reading], written: list[dict[str, Any]], lost: list[UnknownFile], notes: list[str]
) -> Collected:
    rates = [rate for reading in readings for rate in reading.rates]
    derived = [piece for reading in _ranked(readings) for piece in reading.evidence]
    values, conflicts = _values(derived)
    arms, remarks = arms_of(rates)
    if arms:
        values |= arms[0]
        values["arms"] = arms[1:]
    facts, refused = _valid(_merge(_nested(_with_generation(values)), written))
    kinds: dict[str, list[str]] = defaultdict(list)
    for reading in readings:
        kinds[reading.source].append(reading.kind)
        notes += reading.notes
    return Collected(
        facts=facts,
        evidence=(*evidence_of_rates(rates), *(piece for reading in readings for piece in reading.evidence)),
        kinds={source: tuple(found) for source, found in kinds.items()},
        unknown=tuple(lost),
        notes=tuple(dict.fromkeys((*notes, *conflicts, *remarks, *refused))),
    )


def _ranked(readings: list[Reading]) -> list[Reading]:
    return sorted(
        (reading for reading in readings if reading.kind != "facts file"),
        key=lambda reading: RANKS.index(reading.kind) if reading.kind in RANKS else len(RANKS),
    )


def _values(pieces: list[Evidence]) -> tuple[dict[str, Any], list[str]]:
    """One value for each name, the speculative arm's before the plain arm's, and what disagreed."""
    groups: dict[str, list[Evidence]] = defaultdict(list)
    for piece in pieces:
        if _is_fact(piece.name) and not (piece.name in _SPECULATIVE_ONLY and piece.arm == "plain"):
            groups[piece.name].append(piece)
    values: dict[str, Any] = {}
    conflicts = []
    of_speculative = any(piece.name.startswith("launch.") and piece.arm == "speculative" for piece in pieces)
    for name, group in groups.items():
        ordered = sorted(group, key=lambda piece: piece.arm == "plain")
        if name in _GATHERED:
            values[name] = list(dict.fromkeys(str(piece.value) for piece in ordered))[:_MAX_REPEATS]
        elif name in _LISTS:
            values[name] = _first_list(ordered)
        elif not (name.startswith("launch.") and of_speculative and ordered[0].arm == "plain"):
            values[name] = _typed(name, ordered[0].value)
            conflicts += _conflict(name, ordered)
    return values, conflicts


def _is_fact(name: str) -> bool:
    """Whether reported.py has a place for it; dumps hold more, which stays evidence only."""
    section, _, rest = name.partition(".")
    fields = _SECTIONS.get(section)
    return rest.partition(".")[0] in fields if fields is not None and rest else section in ReportedFacts.model_fields


def _typed(name: str, value: float | str) -> float | str | bool:
    """Flags and settings as YAML would type them, so that read ones and hand-written ones are the same."""
    if not name.startswith(("launch.flags.", "launch.resolved.")):
        return value
    if value in ("true", "false", "True", "False"):
        return str(value).lower() == "true"
    known = number(value)
    if known is None:
        return value
    return int(known) if known == int(known) and abs(known) < 2**53 else known


def _first_list(group: list[Evidence]) -> list[float | str]:
    """The values of the first source; of one line where they all come from lines that list them at once."""
    same = [piece for piece in group if piece.source == group[0].source]
    on_line = [piece for piece in same if piece.line == group[0].line]
    return [piece.value for piece in (on_line if len(on_line) > 1 else same)][:_MAX_REPEATS]


def _conflict(name: str, group: list[Evidence]) -> list[str]:
    chosen = group[0]
    other = next((piece for piece in group if piece.arm == chosen.arm and piece.value != chosen.value), None)
    if other is None or name.startswith(("launch.", "hardware.packages.", "log.", "accept_", "verify", "draft_ms")):
        return []
    return [f"{name} is {_at(chosen)}, but {_at(other)}; the first is used."]


def _at(piece: Evidence) -> str:
    place = f"{piece.source}:{piece.line}" if piece.line else piece.source
    value = f"{piece.value:g}" if isinstance(piece.value, float) else piece.value
    return f"{value} in {place}"


def _with_generation(values: dict[str, Any]) -> dict[str, Any]:
    generation = values.get("hardware.pcie_max_gen") or values.get("hardware.pcie_gen")
    if values.get("fabric") == "pcie" and generation in (3, 4, 5):
        return values | {"fabric": f"pcie-gen{generation:.0f}"}
    return values


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        table = next((prefix for prefix in _TABLES if name.startswith(prefix)), "")
        path = [*table.rstrip(".").split("."), name.removeprefix(table)] if table else name.split(".")
        place = nested
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return nested


def _merge(derived: dict[str, Any], written: list[dict[str, Any]]) -> dict[str, Any]:
    """Hand-written facts over derived ones; a name given as text joins what was read about the same thing."""
    merged = derived
    for facts in written:
        for name, value in facts.items():
            known = merged.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                merged[name] = known | value
            elif isinstance(known, dict) and isinstance(value, str):
                merged[name] = known | {"model": {"name": value}, "hardware": {"gpu": value}}.get(name, {})
            else:
                merged[name] = value
    return merged


def _valid(values: dict[str, Any]) -> tuple[ReportedFacts, list[str]]:
    """Facts of these values; what breaks a rule of the types is taken out and told."""
    refused: list[str] = []
    while True:
        try:
            return ReportedFacts.model_validate(values), refused
        except ValidationError as error:
            problems = error.errors()
            if not any([_remove(values, problem["loc"]) for problem in problems]):
                raise
            refused += [f"{_path(p['loc'])} cannot be {str(p['input'])[:60]!r} and was left out." for p in problems]


def _remove(values: dict[str, Any], place: tuple[int | str, ...]) -> bool:
    """Take out the innermost named value on a path of pydantic, which also names the members of unions."""
    here: Any = values
    found: tuple[dict[Any, Any], int | str] | None = None
    for part in place:
        if isinstance(here, dict) and part in here:
            found, here = (here, part), here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
    if found is not None:
        found[0].pop(found[1], None)
    return found is not None


def _path(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in place)
