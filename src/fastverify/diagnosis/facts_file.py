"""The facts file: what a person knows about a slow server, written by hand as YAML or JSON.

Unknown keys are errors, since a misspelt key would silently become "not told". The types are in reported.py; the
published JSON Schema is `facts_schema()`, printed by `fastverify diagnose --schema`. Every number becomes a piece of
evidence with its line in the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from fastverify.diagnosis.evidence import Evidence
from fastverify.diagnosis.reported import ArmFacts, ReportedFacts
from fastverify.errors import ConfigError

SCHEMA_TITLE = "fastverify facts file, version 1"
# Arbitrary: a thousand times the longest file that a person writes.
MAX_BYTES = 1 << 20
_RATE_UNITS = {"plain_tok_s": "tok/s", "speculative_tok_s": "tok/s"}
_SPECULATIVE_ONLY = re.compile(r"speculative|accept|draft|verify|top_k|method|shape")


def read_facts_file(path: Path) -> ReportedFacts:
    """Facts of one file. Raises ConfigError for unreadable text, unknown keys and values out of range."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"a facts file is at most {MAX_BYTES} bytes, {path} has {size}. Give logs as they are.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}. A facts file is UTF-8 YAML or JSON.") from error
    return parse_facts(text, str(path))


def parse_facts(text: str, source: str) -> ReportedFacts:
    """Facts of a text. JSON is read as the YAML that it is."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"a facts file is at most {MAX_BYTES} bytes, {source} has {len(text)}.")
    try:
        document = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{source} is neither YAML nor JSON: {str(error).splitlines()[0]}.") from error
    if not isinstance(document, dict):
        raise ConfigError(f"a facts file is a mapping of names to values, {source} is a {type(document).__name__}.")
    return make_facts(document, source)


def make_facts(document: dict[str, Any], source: str) -> ReportedFacts:
    """Facts of a decoded document. Raises ConfigError that names every wrong key."""
    try:
        return ReportedFacts.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors()[:5])
        raise ConfigError(f"{source}: {problems}. `fastverify diagnose --schema` prints the format.") from error


def facts_schema() -> dict[str, Any]:
    """JSON Schema of the facts file."""
    return {"title": SCHEMA_TITLE, **{k: v for k, v in ReportedFacts.model_json_schema().items() if k != "title"}}


def evidence_of_facts(facts: ReportedFacts, source: str, text: str = "") -> tuple[Evidence, ...]:
    """Every number and word of the arms as evidence; with the text, the line on which its key stands."""
    lines = text.splitlines()
    found = list(_evidence_of_arm(facts, source, lines, start=0))
    position = 0
    for arm in facts.arms:
        pieces = list(_evidence_of_arm(arm, source, lines, start=position))
        found += pieces
        position = max([position, *(piece.line or 0 for piece in pieces)])
    return tuple(found)


def _evidence_of_arm(arm: ArmFacts, source: str, lines: list[str], *, start: int) -> list[Evidence]:
    pieces = []
    for name in ArmFacts.model_fields:
        value = getattr(arm, name)
        if isinstance(value, bool) or value is None or isinstance(value, dict):
            continue
        values = value if isinstance(value, tuple) else (value,)
        line = _line_of(name, lines, start)
        pieces += [
            Evidence(name=name, value=item, unit=_unit(name), arm=_arm(name), source=source, line=line)
            for item in values
        ]
    return pieces


def _line_of(name: str, lines: list[str], start: int) -> int | None:
    """Line of the key, from 1; the first at or after `start` lines, else the first at all."""
    places = [n for n, line in enumerate(lines, start=1) if re.search(rf"\b{name}\b\"?\s*:", line)]
    return next((n for n in places if n > start), places[0] if places else None)


def _unit(name: str) -> str:
    if name in _RATE_UNITS:
        return "tok/s"
    suffixes = {"_ms": "ms", "accept_length": "tokens", "rate": "share", "position": "share", "ratio": "share"}
    return next((unit for suffix, unit in suffixes.items() if name.endswith(suffix)), "")


def _arm(name: str) -> Literal["plain", "speculative", "both"]:
    if name.startswith("plain"):
        return "plain"
    return "speculative" if _SPECULATIVE_ONLY.search(name) else "both"


def _problem(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{place} is not a known name"
    return f"{place}: {item['msg'][:120]}, got {str(item['input'])[:60]!r}"


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Safe YAML in which a key may stand once, and anchors are refused: aliases can grow without bound."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed in a facts file")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        repeated = sorted({str(key) for key in keys if keys.count(key) > 1})
        if repeated:
            raise yaml.YAMLError(f"{', '.join(repeated)} stands twice")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping
