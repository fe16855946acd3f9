"""The all-reduce table of a machine that was only reported: published times, brought to the level of what was told.

Where the report's own all-reduces are near the published ones, another backend's published time is taken as it stands.
Where they are far above, the platform may be at fault, and then every backend may suffer: the middle is between the
published time and the published ratio applied to what was told, and the range covers both. A benchmark of the user's
own machine (`bench`, and `all_reduce_us` of an arm) replaces all of it for its backends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fastverify.diagnosis.all_reduce_priors import PriorLatency, prior_backends, prior_latency
from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.report import Report
from fastverify.tuning.all_reduce_table import AllReduceRow, AllReduceTable

# Arbitrary: at most this much of the middle, so that the low end stays above zero.
MAX_HALF_WIDTH = 0.8


@dataclass(frozen=True)
class BackendShare:
    """A backend known only relative to the present one: new over present time."""

    low: float
    mid: float
    high: float


def machine_table(
    report: Report,
    arm: ArmReading,
    present_us: Mapping[int, float],
    shares: Mapping[str, BackendShare],
    *,
    reference: str,
) -> AllReduceTable:
    """Rows of every backend at the message sizes of both arms; `present_us` maps bytes to what a call takes now."""
    ranks, fabric = arm.facts.tp or 1, report.machine.fabric
    rows = [_row(reference, ranks, size, us, 0.0) for size, us in present_us.items()]
    rows += _bench_rows(report, arm, reference)
    for size, us in present_us.items():
        rows += [
            _row(name, ranks, size, us * share.mid, us * (share.high - share.low) / 2) for name, share in shares.items()
        ]
    if fabric is None:
        return AllReduceTable(rows)
    own = _own_records(report)
    measured = {row.backend for row in rows}
    for backend in prior_backends(fabric, ranks):
        if backend == report.present_backend(arm) or backend in own or backend in measured:
            continue
        for size, us in present_us.items():
            there, present = prior_latency(fabric, ranks, size, backend), report.prior(arm, size)
            if there is not None and present is not None:
                rows.append(_row(backend, ranks, size, *_on_this_machine(us, there, present)))
    rows += [_row(name, ranks, size, us, 0.0) for name, sizes in own.items() for size, us in sizes.items()]
    return AllReduceTable(rows)


def _bench_rows(report: Report, arm: ArmReading, reference: str) -> list[AllReduceRow]:
    """The user's own benchmark of as many ranks, every backend under its name."""
    bench, ranks = report.facts.bench, arm.facts.tp or 1
    if bench.world_size != ranks:
        return []
    return [
        _row(backend, ranks, size, us, 0.0, fused=fused)
        for fused, table in ((False, bench.us), (True, bench.fused_us))
        for backend, sizes in table.items()
        for size, us in sizes.items()
        if backend != reference
    ]


def _on_this_machine(us: float, there: PriorLatency, present: PriorLatency) -> tuple[float, float]:
    """Middle and half-width for a backend, given what an all-reduce takes here and what both take elsewhere."""
    scaled = us * there.us / present.us
    mid = math.sqrt(there.us * scaled) if scaled > there.us else there.us
    low = there.us * (1 - there.spread)
    high = max(scaled, there.us) * (1 + there.spread)
    return mid, min((high - low) / 2, MAX_HALF_WIDTH * mid)


def _own_records(report: Report) -> dict[str, dict[int, float]]:
    """Benchmark records of the report, by backend."""
    records: dict[str, dict[int, float]] = {}
    for arm in report.own_arms():
        if arm.facts.all_reduce_us and arm.facts.all_reduce_backend not in (None, "nccl"):
            records.setdefault(str(arm.facts.all_reduce_backend), {}).update(arm.facts.all_reduce_us)
    return records


def _row(
    backend: str, world_size: int, num_bytes: int, us: float, half_width: float, *, fused: bool = False
) -> AllReduceRow:
    return AllReduceRow(
        backend=backend,
        num_bytes=num_bytes,
        world_size=world_size,
        dtype="bfloat16",
        fused=fused,
        median_us=us,
        iqr_us=half_width,
    )
