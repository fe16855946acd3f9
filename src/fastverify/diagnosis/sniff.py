"""Decides what a document is and reads it: each kind of text has a marker or a shape, and a reader of its own.

One text may hold several kinds (an issue with a command, a log and a topology), so every reader whose kind is there
reads it. What no reader knows is told by `unknown_reason`, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fastverify.diagnosis.facts_file import evidence_of_facts, parse_facts
from fastverify.diagnosis.readers import bench_json, bench_text, env_dump, model_json, own_records, server_info
from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.json_log import unwrapped
from fastverify.diagnosis.readers.launch_command import read_launch_commands
from fastverify.diagnosis.readers.metrics_page import read_metrics_page
from fastverify.diagnosis.readers.nccl_debug import read_nccl_debug
from fastverify.diagnosis.readers.pci import read_kernel_command_line, read_lspci
from fastverify.diagnosis.readers.reading import Reading
from fastverify.diagnosis.readers.responses import read_response
from fastverify.diagnosis.readers.server_config import read_server_config
from fastverify.diagnosis.readers.sglang_log import read_sglang_log
from fastverify.diagnosis.readers.software import read_software, read_variables
from fastverify.diagnosis.readers.topology import read_topology
from fastverify.diagnosis.readers.trace_profile import read_profile
from fastverify.diagnosis.readers.version_pins import read_version_pins
from fastverify.diagnosis.readers.vllm_log import read_vllm_log
from fastverify.diagnosis.reported import ReportedFacts

Reader = Callable[[Document], Reading | None]
FACTS_KIND = "facts file"
JSON_READERS: tuple[Reader, ...] = (
    server_info.read_server_info,
    own_records.read_measurement,
    read_profile,
    own_records.read_bench_record,
    model_json.read_model_json,
    bench_json.read_bench_json,
    read_response,
)
TEXT_READERS: tuple[Reader, ...] = (
    read_sglang_log,
    read_vllm_log,
    read_launch_commands,
    read_metrics_page,
    bench_text.read_bench_text,
    read_topology,
    read_nccl_debug,
    read_lspci,
    read_kernel_command_line,
    read_software,
    read_variables,
    read_version_pins,
)
_TOP_KEY = re.compile(r"([A-Za-z][\w-]{0,60}):(?: .*)?")
# Keys of which one is enough to call a mapping a facts file; `model` alone may be a server's configuration.
_FACT_KEYS = set(ReportedFacts.model_fields) - {"model", "server", "tp", "method", "launch", "log"}


def read_text(document: Document) -> list[Reading]:
    """Readings of every kind that a document holds, but not of a facts file. Empty where none is known."""
    if env_dump.is_env_dump(document.json):
        return env_dump.read_env_dump(document, TEXT_READERS)
    if (log := unwrapped(document)) is not None:
        return _apply(TEXT_READERS, log)
    if document.json is not None:
        return _apply(JSON_READERS, document)
    if (config := read_server_config(document)) is not None:
        return [config]
    return _apply(TEXT_READERS, document)


def is_facts_file(document: Document) -> bool:
    """Whether a document is a mapping that has at least one name of the facts file at its top."""
    value: Any = document.json
    if isinstance(value, dict):
        return bool(_FACT_KEYS & value.keys()) and not _apply(JSON_READERS, document)
    keys = [match[1] for _, line in document.lines if (match := _TOP_KEY.fullmatch(line.rstrip()))]
    others = [line for _, line in document.lines if line.strip() and not line.startswith((" ", "#", "-", "}", "]"))]
    return bool(keys) and len(keys) == len(others) and bool(_FACT_KEYS & set(keys))


def read_facts(document: Document) -> tuple[ReportedFacts, Reading]:
    """A facts file and its evidence. Raises ConfigError that names every wrong key."""
    facts = parse_facts(document.text, document.source)
    return facts, Reading(FACTS_KIND, document.source, evidence_of_facts(facts, document.source, document.text))


def unknown_reason(document: Document) -> str:
    """Why nothing was read from a document, and what it looks like."""
    value = document.json
    if not document.text.strip():
        return "it is empty"
    if isinstance(value, dict) and "traceEvents" in value or '"traceEvents"' in document.text[:100_000]:
        return "it is a profiler trace: give it as a file, not inside other text"
    if isinstance(value, dict):
        return f"JSON of an unknown kind, with the keys {', '.join(list(map(str, value))[:5])}"
    if isinstance(value, list):
        return "a JSON list of an unknown kind"
    if document.text.lstrip().startswith(("{", "[")):
        return "it starts like JSON, but is cut or damaged"
    return "no line of a known log, command, benchmark, metrics page or dump"


def _apply(readers: tuple[Reader, ...], document: Document) -> list[Reading]:
    return [reading for reader in readers if (reading := reader(document)) is not None]
