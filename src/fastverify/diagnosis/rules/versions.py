"""R-VER: packages that do not fit together, and known bugs of versions and settings (known_bugs.py)."""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.known_bugs import bugs_of
from fastverify.diagnosis.report import Report

_FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


def mixed_flashinfer(report: Report) -> Iterator[Finding]:
    """R-VER: the wheels of FlashInfer are built for each other, version by version."""
    packages = {name.replace("_", "-"): version for name, version in report.machine.dump.packages.items()}
    found = {name: packages[name].split("+")[0].split(".post")[0] for name in _FLASHINFER if name in packages}
    if len(set(found.values())) < 2:
        return
    yield Finding(
        rule="R-VER",
        title="FlashInfer's wheels have different versions: "
        + ", ".join(f"{name} {version}" for name, version in found.items())
        + ".",
        numbers={},
        threshold=0.0,
        threshold_source="its start-up check wants equal versions",
        confidence="high",
        evidence=report.evidence_named(*found),
        next="Install the same version of all of them.",
    )


def known_bugs(report: Report) -> Iterator[Finding]:
    """R-VER: a known bug whose conditions this report meets."""
    for bug, is_sure in bugs_of(report):
        yield Finding(
            rule="R-VER",
            title=f"{bug.title} {bug.consequence}",
            numbers={},
            threshold=0.0,
            threshold_source=bug.source,
            confidence="high" if is_sure else "medium",
            evidence=report.evidence_named("server_version", "errors", "env", *bug.env),
            next=bug.works,
        )
