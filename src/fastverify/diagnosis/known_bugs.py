"""The registry of known bugs: data/known_bugs.yaml, matched against versions, settings and log lines of a report.

A bug applies where every condition that it states is met. Versions that were not told do not speak against it, but make
the match less sure. Text is searched as it stands, without patterns, so that no log can make the search slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.report import Report
from fastverify.diagnosis.version_range import VersionRange

DATA_FILE = "data/known_bugs.yaml"


class KnownBug(BaseModel):
    """`env`, `flags`: values that must be set, compared without case; `*` is any value, `!x` any but x."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    consequence: str
    works: str
    """The setting that works, or what to do instead."""
    source: str
    server: str | None = None
    versions: VersionRange = VersionRange()
    packages: dict[str, VersionRange] = {}
    env: dict[str, str] = {}
    flags: dict[str, str] = {}
    unless_resolved: tuple[str, ...] = ()
    """Settings that a server of a release with this bug does not print: one of them shows another release."""
    log_contains: tuple[str, ...] = ()
    """One of these stands in a line of the log; enough by itself."""
    min_tp: int = 1
    compute_capabilities: tuple[str, ...] = ()
    pcie_only: bool = False


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """Every entry of the registry."""
    text = files("fastverify.diagnosis").joinpath(DATA_FILE).read_text(encoding="utf-8")
    return tuple(KnownBug.model_validate(entry) for entry in yaml.safe_load(text)["bugs"])


def bugs_of(report: Report) -> Iterator[tuple[KnownBug, bool]]:
    """Bugs that this report meets, and whether every condition was told rather than assumed."""
    for bug in known_bugs():
        if any(text in line for text in bug.log_contains for line in report.log.errors):
            yield bug, True
        elif _has_condition(bug) and (sure := _matches(bug, report)) is not None:
            yield bug, sure


def _has_condition(bug: KnownBug) -> bool:
    return bool(bug.env or bug.flags or bug.packages or not bug.versions.is_open)


def _matches(bug: KnownBug, report: Report) -> bool | None:
    """None: does not apply. Else whether it is sure."""
    if bug.server is not None and not report.server_is((bug.server,)):
        return None
    if not _fits_machine(bug, report):
        return None
    resolved = {name.replace("_", "-") for name in report.facts.launch.resolved}
    if resolved & set(bug.unless_resolved):
        return None
    settings_met = all(_meets(report.env(name), wanted) for name, wanted in bug.env.items()) and all(
        _meets(report.flag(name), wanted) for name, wanted in bug.flags.items()
    )
    if not settings_met:
        return None
    told = [bug.versions.contains(report.facts.server_version)] if not bug.versions.is_open else []
    told += [versions.contains(report.machine.dump.packages.get(name)) for name, versions in bug.packages.items()]
    if False in told:
        return None
    # Without any setting, an unknown version is no reason to suspect everybody.
    if None in told and not (bug.env or bug.flags):
        return None
    return None not in told


def _fits_machine(bug: KnownBug, report: Report) -> bool:
    ranks = max((arm.facts.tp or 1 for arm in report.arms), default=1)
    if ranks < bug.min_tp:
        return False
    if bug.compute_capabilities and report.machine.compute_capability not in bug.compute_capabilities:
        return False
    return not bug.pcie_only or report.machine.is_pcie


def _meets(value: Any, wanted: str) -> bool:
    if value is None:
        return False
    text = str(value).strip().lower()
    if wanted.startswith("!"):
        return text != wanted[1:].lower()
    return wanted == "*" or text == wanted.lower()
