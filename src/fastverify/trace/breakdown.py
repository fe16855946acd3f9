"""From passes to the answer: totals of the file, rows of passes and ranks, health, histogram of message sizes.

Totals and passes are those of the lowest rank; ranks.py joins the others. Definitions: docs/traces.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastverify.trace.collectives import ModelSizes, Recorded, recorded_collectives
from fastverify.trace.costs import cost_of
from fastverify.trace.events import Int64, TraceData
from fastverify.trace.kinds import CollectiveOp
from fastverify.trace.pass_rows import Known, pass_rows
from fastverify.trace.passes import Passes, find_passes
from fastverify.trace.profile import HealthRow, PassRow, Profile, RankRow, SizeRow, Totals
from fastverify.trace.ranks import match_ranks
from fastverify.trace.verdict import headline
from fastverify.trace.work import Work
from fastverify.units import ns_to_us

# Arbitrary: below this share of explained kernel time the pass rows are not the whole story, and health says so.
MIN_COVERAGE = 0.9


@dataclass(frozen=True)
class Analysis:
    """A profile and what it was computed from, one entry of `passes` per rank of the profile."""

    profile: Profile
    passes: tuple[Passes, ...]


def profile_of(traces: Sequence[TraceData], model: ModelSizes | None = None) -> Profile:
    """Profile of all ranks: totals and passes of the lowest one, matched with the others."""
    return analyse(traces, model).profile


def analyse(traces: Sequence[TraceData], model: ModelSizes | None = None) -> Analysis:
    """As `profile_of`, with the passes, for those who draw them."""
    ordered = sorted(traces, key=lambda trace: trace.info.rank)
    passes = tuple(find_passes(trace) for trace in ordered)
    rows = [_rank_row(trace, found.work) for trace, found in zip(ordered, passes, strict=True)]
    matching = match_ranks(rows, [found.work for found in passes])
    profile = breakdown(ordered[0], passes[0], model, matching.transfer_ns)
    merged = _all_health(ordered, matching.faults, profile.health)
    sources = tuple(dict.fromkeys(trace.info.source for trace in ordered))
    profile = profile.model_copy(update={"ranks": matching.ranks, "health": merged, "sources": sources})
    return Analysis(profile.model_copy(update={"verdict": headline(profile)}), passes)


def breakdown(
    trace: TraceData, passes: Passes, model: ModelSizes | None = None, transfer_ns: Int64 | None = None
) -> Profile:
    """Profile of one rank; `transfer_ns` is what ranks.py found for its collectives."""
    work, recorded = passes.work, recorded_collectives(trace, passes.work)
    rank, rows = _rank_row(trace, work), pass_rows(passes, Known(recorded, model, transfer_ns))
    profile = Profile(
        verdict="",
        sources=(trace.info.source,),
        program=passes.program,
        device="CPU" if work.is_cpu else ", ".join(dict.fromkeys(name for name in trace.info.device_names if name)),
        rule=passes.rule,
        coverage=passes.coverage,
        totals=rank.totals,
        passes=rows,
        sizes=_sizes(work, recorded, rows),
        health=_health(trace, passes),
        ranks=(rank,),
    )
    return profile.model_copy(update={"verdict": headline(profile)})


def _totals(work: Work) -> Totals:
    cost = cost_of(work, np.arange(len(work)))
    return Totals(
        span_us=ns_to_us(cost.wall_ns),
        busy_us=ns_to_us(cost.busy_ns),
        compute_us=ns_to_us(cost.compute_ns),
        communication_us=ns_to_us(cost.communication_ns),
        exposed_communication_us=ns_to_us(cost.exposed_communication_ns),
        overlapped_communication_us=ns_to_us(cost.communication_ns - cost.exposed_communication_ns),
        memory_us=ns_to_us(cost.memory_ns),
        idle_us=ns_to_us(cost.gap_ns),
        num_collectives=int(work.is_collective.sum()),
        num_kernels=int((~work.is_memory).sum()),
    )


def _rank_row(trace: TraceData, work: Work) -> RankRow:
    info = trace.info
    return RankRow(rank=info.rank, world_size=info.world_size, source=info.source, totals=_totals(work))


def _sizes(work: Work, recorded: dict[int, Recorded], passes: Sequence[PassRow]) -> tuple[SizeRow, ...]:
    """Sizes from the file, wherever the collective ran, and those worked out from the model for passes."""
    counts: Counter[tuple[str, int]] = Counter()
    for i in np.flatnonzero(work.is_collective).tolist():
        said = recorded.get(int(work.row[i]))
        if said and said.num_bytes is not None:
            op = work.kinds[work.name[i]].op or CollectiveOp.UNKNOWN
            counts[said.op if op is CollectiveOp.UNKNOWN else op, said.num_bytes] += 1
    for row in passes:
        for one in row.collectives:
            if one.num_bytes is not None and one.bytes_source == "model and rows":
                counts[one.op, one.num_bytes] += round(one.count_per_pass * row.count)
    return tuple(SizeRow(op=op, num_bytes=size, count=count) for (op, size), count in sorted(counts.items()))


def _health(trace: TraceData, passes: Passes) -> tuple[HealthRow, ...]:
    rows = [HealthRow(fault=row.fault, count=row.count, example=row.example) for row in trace.health.rows]
    work = passes.work
    if len(work) and passes.passes and passes.coverage < MIN_COVERAGE:
        owned = np.zeros(len(work), dtype=bool)
        for one in passes.passes:
            owned[one.work] = True
        outside = np.flatnonzero(~owned)  # empty when all work has no duration
        for first in outside[:1]:
            example = work.names[work.name[first]]
            rows.append(HealthRow(fault="work outside every pass", count=len(outside), example=example))
    return tuple(rows)


def _all_health(
    traces: Sequence[TraceData], faults: Sequence[HealthRow], first: Sequence[HealthRow]
) -> tuple[HealthRow, ...]:
    """Rows of all ranks; rows of higher ranks name their rank in the example."""
    rows = list(first)
    for trace in traces[1:]:
        for row in trace.health.rows:
            rows.append(HealthRow(fault=row.fault, count=row.count, example=f"rank {trace.info.rank}: {row.example}"))
    return (*rows, *faults)
