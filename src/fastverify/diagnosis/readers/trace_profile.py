"""Profiler files, and what `fastverify profile --json` printed of them: the anatomy of a cycle and its all-reduces.

A profiler slows the host, so passes give phases and no rate. Of several batches the one with most verify (else plain)
passes counts. A collective's time in a trace holds the waiting for the slowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import AnyArm, Reading, ReadingBuilder
from fastverify.trace.breakdown import analyse
from fastverify.trace.kind_names import Backend, CollectiveOp
from fastverify.trace.many import read_traces
from fastverify.trace.profile import PassRow, Profile
from fastverify.trace.spans import PassKind
from fastverify.units import US_PER_MS

KIND = "profiler trace"
# Back ends of kernels -> the short names of reported.py.
_BACKENDS = {
    Backend.NCCL: "nccl",
    Backend.NCCL_SYMMETRIC: "nccl-symmetric",
    Backend.CUSTOM_ALL_REDUCE: "custom",
    Backend.CUSTOM_ALL_REDUCE_V2: "custom",
    Backend.FLASHINFER_PCIE: "pcie-ipc",
    Backend.SYMMETRIC_MEMORY: "symm-mem",
}


def is_profile(value: Any) -> bool:
    """Whether a JSON value is what `fastverify profile --json` prints."""
    return isinstance(value, dict) and {"passes", "coverage", "totals", "rule"} <= value.keys()


def read_profile(document: Document) -> Reading | None:
    """Phases of a printed profile."""
    if not is_profile(document.json):
        return None
    try:
        profile = Profile.model_validate(document.json)
    except ValidationError as error:
        note = f"{document.source} is no profile of this release: {error.errors()[0]['msg']}."
        return Reading(KIND, document.source, notes=(note,))
    return reading_of(profile, document.source, document.line_of('"passes"'))


def read_trace_files(paths: Sequence[Path]) -> Reading:
    """Phases of the profiler files of one run, one per rank. Raises TraceFormatError for files that cannot be read."""
    profile = analyse(read_traces([*paths])).profile
    return reading_of(profile, ", ".join(map(str, paths[:2])) + (", ..." if len(paths) > 2 else ""), None)


def reading_of(profile: Profile, source: str, line: int | None) -> Reading:
    """Evidence of a profile."""
    builder = ReadingBuilder(KIND, source)
    world_size = max((rank.world_size for rank in profile.ranks), default=1)
    if world_size > 1:
        builder.add("tp", world_size, line)
    verify = _most(profile.passes_of(PassKind.VERIFY))
    plain = _most(profile.passes_of(PassKind.PLAIN))
    if verify is not None:
        _add_verify(builder, verify, line)
        _add_drafts(builder, profile, verify, line)
    elif plain is not None:
        ms = _all_reduce_ms(plain)
        builder.add("plain_all_reduce_ms", ms or None, line, unit="ms", arm="plain")
    main = verify or plain
    if main is not None:
        _add_backend(builder, main, line, arm="speculative" if verify else "plain")
    else:
        builder.notes.append(f"{source}: no decode pass was recognised in the trace ({profile.verdict})")
    return builder.build()


def _add_verify(builder: ReadingBuilder, verify: PassRow, line: int | None) -> None:
    numbers = {
        "verify_ms": verify.wall_us / US_PER_MS,
        "verify_compute_ms": verify.compute_us / US_PER_MS,
        "verify_all_reduce_ms": _all_reduce_ms(verify),
    }
    for name, ms in numbers.items():
        builder.add(name, ms, line, unit="ms", arm="speculative")
    builder.add("all_reduces_per_verify", round(verify.all_reduces_per_pass) or None, line, arm="speculative")
    builder.add("batch", verify.batch, line, arm="speculative")
    if verify.batch and verify.rows and verify.rows % verify.batch == 0 and verify.rows > verify.batch:
        builder.add("num_verify_tokens", verify.rows // verify.batch, line, arm="speculative")


def _add_drafts(builder: ReadingBuilder, profile: Profile, verify: PassRow, line: int | None) -> None:
    count = ms = 0.0
    drafts = [row for row in profile.passes_of(PassKind.DRAFT) if row.batch == verify.batch]
    for row in drafts:
        name = "extend_ms" if row.phase == "draft_extend" else "draft_ms"
        builder.add(name, row.wall_us / US_PER_MS, line, unit="ms", arm="speculative", once=True)
        count += row.collectives_per_pass
        ms += row.communication_us / US_PER_MS
    if drafts:
        builder.add("draft_collectives_per_cycle", count, line, arm="speculative")
        builder.add("draft_collective_ms", ms, line, unit="ms", arm="speculative")


def _add_backend(builder: ReadingBuilder, row: PassRow, line: int | None, arm: AnyArm) -> None:
    all_reduces = [found for found in row.collectives if found.op == CollectiveOp.ALL_REDUCE]
    if all_reduces:
        backend = max(all_reduces, key=lambda found: found.us_per_pass).backend
        known = {name.value: short for name, short in _BACKENDS.items()}
        builder.add("all_reduce_backend", known.get(backend, backend), line, arm=arm)


def _all_reduce_ms(row: PassRow) -> float:
    return sum(found.us_per_pass for found in row.collectives if found.op == CollectiveOp.ALL_REDUCE) / US_PER_MS


def _most(rows: Sequence[PassRow]) -> PassRow | None:
    return max(rows, key=lambda row: row.count, default=None)
