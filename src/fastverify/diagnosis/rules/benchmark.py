"""Rules on `fastverify bench all-reduce` of the machine itself: what another backend would save in a verify pass.

A benchmark runs alone: it knows neither waiting ranks nor work beside the call. The plan's prediction adds the waiting.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import BENCH_SOURCE, Report
from fastverify.diagnosis.rules.all_reduces import MIN_BACKEND_GAIN
from fastverify.units import US_PER_MS, format_bytes

# Backends that an experiment of the catalogue switches on.
EXPERIMENTS = {
    "fastverify": "comm.fastverify",
    "symm-mem": "comm.torch-symm-mem",
    "mscclpp": "comm.mscclpp",
    "pcie-ipc": "comm.pcie-ipc",
}


def faster_backend(report: Report) -> Iterator[Finding]:
    """R-ARBENCH: at the verify pass's message size another backend is faster on this machine."""
    arm = report.main_arm
    size, present = report.message_bytes(arm), report.present_backend(arm)
    present_us = report.bench_us(arm, present, size) if size is not None else None
    if size is None or present_us is None:
        return
    for backend, experiment in EXPERIMENTS.items():
        us = report.bench_us(arm, backend, size)
        if us is not None and backend != present and us < present_us * (1 - MIN_BACKEND_GAIN):
            yield _finding(report, arm, experiment, {present: present_us, backend: us}, size)


def _finding(report: Report, arm: ArmReading, experiment: str, us: dict[str, float], size: int) -> Finding:
    (present, present_us), (backend, new_us) = us.items()
    numbers = {"num_bytes": float(size), "present_us": present_us, "new_us": new_us}
    calls = arm.facts.all_reduces_per_verify or report.model.all_reduces_per_pass
    saving = ""
    if calls:
        saved_ms = calls * (present_us - new_us) / US_PER_MS
        numbers |= {"all_reduces_per_verify": float(calls), "saved_ms_per_verify": saved_ms}
        saving = f"; {experiment} would save {saved_ms:.2f} ms of a verify pass of {calls:.0f} all-reduces"
    return Finding(
        rule="R-ARBENCH",
        title=f"At {format_bytes(size)} {present} takes {present_us:.1f} us and {backend} {new_us:.1f} in your "
        f"benchmark{saving}.",
        numbers=numbers,
        threshold=MIN_BACKEND_GAIN,
        threshold_source=f"{BENCH_SOURCE}; arbitrary: three times its noise",
        confidence="medium",
        evidence=report.evidence_named(*(_nearest(report, name, size) for name in us)),
        next=f"Try {experiment}; in the server ranks also wait for each other, so measure both arms.",
        arms=(arm.name,),
        experiments=(experiment,),
    )


def _nearest(report: Report, backend: str, size: int) -> str:
    """Evidence of the measured size next to this one."""
    nearest = min(report.facts.bench.us[backend], key=lambda measured: abs(measured - size))
    return f"bench.us.{backend}.{nearest}"
