"""The registry: every entry can fire, versions bound it, and what was not told makes it less sure."""

from typing import Any

import pytest

from fastverify.diagnosis.facts_file import make_facts
from fastverify.diagnosis.known_bugs import KnownBug, bugs_of, known_bugs
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.version_range import VersionRange


def report(**facts: Any) -> Report:
    return Report(make_facts(facts, "test"))


def matching_facts(bug: KnownBug) -> dict[str, Any]:
    """A report that meets every condition of the entry."""
    inside = {name: versions.since or "0.1" for name, versions in bug.packages.items()}
    hardware: dict[str, Any] = {"packages": inside}
    if bug.compute_capabilities:
        hardware["compute_capability"] = bug.compute_capabilities[0]
    return {
        "server": bug.server or "sglang",
        "server_version": bug.versions.since or "0.1",
        "fabric": "pcie-gen5",
        "tp": 8,
        "hardware": hardware,
        "launch": {
            "env": {name: "1" if value[0] in "*!" else value for name, value in bug.env.items()},
            "flags": {name: "8" if value == "*" else value for name, value in bug.flags.items()},
        },
        "log": {"errors": [f"ERROR: {text} now" for text in bug.log_contains[:1]]},
    }


@pytest.mark.parametrize("bug", known_bugs(), ids=lambda bug: bug.id)
def test_every_entry_fires_where_its_conditions_are_met(bug: KnownBug) -> None:
    found = {found.id: sure for found, sure in bugs_of(report(**matching_facts(bug)))}
    assert found[bug.id] is True


def test_nothing_fires_on_a_report_without_conditions() -> None:
    assert list(bugs_of(report(server="sglang", tp=8, fabric="pcie-gen5"))) == []


def test_versions_outside_the_range_do_not_fire() -> None:
    launch = {"env": {"NCCL_ALGO": "Tree"}}
    old = report(launch=launch, hardware={"packages": {"nccl": "2.23.4"}})
    untold = report(launch=launch)
    assert list(bugs_of(old)) == []
    assert [(bug.id, sure) for bug, sure in bugs_of(untold)] == [("nccl-tree-for-everything", False)]


@pytest.mark.parametrize(
    ("version", "inside"),
    [("0.5.22", False), ("0.5.23", True), ("0.5.23.post1+cu130", True), ("v0.6", False), ("main", None), (None, None)],
)
def test_version_range(version: str | None, inside: bool | None) -> None:
    assert VersionRange(since="0.5.23", before="0.6").contains(version) is inside
