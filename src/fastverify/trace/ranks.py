"""Several ranks of one run: which part of their collectives is waiting for the last one, and who that is.

Clocks of two hosts differ by more than a collective lasts, so ranks are aligned on the ends of collectives, which all
ranks leave together. The n-th collective of a kind on one rank is the n-th of that kind on the others; ids are never
compared. The last rank to arrive waits for nobody: the minimum over ranks is the transfer, the rest of a rank's time is
waiting. The first collective names no straggler: its waiting is the start of the other ranks' profilers. A collective
with a rank that leaves early (broadcast, send) is not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastverify.trace.events import Int64
from fastverify.trace.profile import HealthRow, RankRow
from fastverify.trace.work import Work
from fastverify.units import ns_to_us

# Arbitrary: a rank is named the straggler only if the others lose this share of their collective time to waiting ...
MIN_WAITING_SHARE = 0.1
# ... and it waits for less than this share of what the others wait on average. Arbitrary: clearly not by turns.
MAX_OWN_WAITING_SHARE = 0.5


UNMATCHED = -1


@dataclass(frozen=True)
class Matching:
    """Rank rows with waiting and transfer filled in, and what could not be matched.

    `transfer_ns` has one entry per row of the first rank's work, UNMATCHED for all but matched collectives.
    """

    ranks: tuple[RankRow, ...]
    faults: tuple[HealthRow, ...]
    transfer_ns: Int64


@dataclass(frozen=True)
class _Matched:
    """Matched collectives: one line of times per rank, one column per collective; `row` is the first rank's."""

    start_ns: Int64
    end_ns: Int64
    row: Int64


def match_ranks(rows: Sequence[RankRow], works: Sequence[Work]) -> Matching:
    """Match the collectives of all ranks, given in order of rank."""
    transfer_ns = np.full(len(works[0]), UNMATCHED, dtype=np.int64)
    if len(rows) < 2:
        return Matching(tuple(rows), (), transfer_ns)
    doubled = [row for i, row in enumerate(rows) if row.rank in {other.rank for other in rows[:i]}]
    if doubled:
        names = ", ".join(row.source for row in rows if row.rank == doubled[0].rank)
        fault = HealthRow(fault="several files claim one rank", count=len(doubled), example=names)
        return Matching(tuple(rows), (fault,), transfer_ns)
    matched, faults = _match(rows, works)
    if matched.start_ns.shape[1] == 0:
        return Matching(tuple(rows), faults, transfer_ns)
    durations = matched.end_ns - matched.start_ns
    transfer = durations.min(axis=0)
    transfer_ns[matched.row] = transfer
    each_waiting = durations - transfer
    waiting = each_waiting.sum(axis=1)
    first = int(matched.end_ns[0].argmin())
    last = np.bincount(durations.argmin(axis=0), minlength=len(rows))
    offsets = np.median(matched.end_ns - matched.end_ns[0], axis=1)
    straggler = _straggler(np.delete(each_waiting, first, axis=1), np.delete(durations, first, axis=1))
    filled = [
        row.model_copy(
            update={
                "num_matched_collectives": durations.shape[1],
                "waiting_us": ns_to_us(int(waiting[i])),
                "first_waiting_us": ns_to_us(int(each_waiting[i, first])),
                "transfer_us": ns_to_us(int(transfer.sum())),
                "last_arrivals": int(last[i]),
                "clock_offset_us": ns_to_us(float(offsets[i])),
                "is_straggler": i == straggler,
            }
        )
        for i, row in enumerate(rows)
    ]
    return Matching(tuple(filled), faults, transfer_ns)


def _match(rows: Sequence[RankRow], works: Sequence[Work]) -> tuple[_Matched, tuple[HealthRow, ...]]:
    """Pairs collectives by kind and order. Where ranks hold different counts of a kind, none of it is matched."""
    by_kind = [_by_kind(work) for work in works]
    starts, ends, first, unmatched, example = [], [], [], 0, ""
    for key in sorted(set().union(*by_kind)):
        found = [kinds.get(key) for kinds in by_kind]
        counts = [0 if rows_of is None else len(rows_of) for rows_of in found]
        if len(set(counts)) > 1:
            unmatched += max(counts)
            example = example or f"{' '.join(key)}: " + ", ".join(
                f"{count} on rank {row.rank}" for row, count in zip(rows, counts, strict=True)
            )
            continue
        chosen = [rows_of for rows_of in found if rows_of is not None]
        first.append(chosen[0])
        starts.append(np.stack([work.start_ns[i] for work, i in zip(works, chosen, strict=True)]))
        ends.append(np.stack([work.end_ns[i] for work, i in zip(works, chosen, strict=True)]))
    empty = np.zeros((len(works), 0), dtype=np.int64)
    fault = HealthRow(fault="collectives not matched over ranks", count=unmatched, example=example)
    matched = _Matched(
        np.concatenate([empty, *starts], axis=1),
        np.concatenate([empty, *ends], axis=1),
        np.concatenate([np.zeros(0, dtype=np.int64), *first]),
    )
    return matched, (fault,) if unmatched else ()


def _by_kind(work: Work) -> dict[tuple[str, str], Int64]:
    """Rows of collectives by operation and back end, in order of their end."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i in np.flatnonzero(work.is_collective).tolist():
        kind = work.kinds[work.name[i]]
        groups.setdefault((str(kind.op), str(kind.backend)), []).append(i)
    return {key: np.array(sorted(found, key=lambda i: int(work.end_ns[i]))) for key, found in groups.items()}


def _straggler(each_waiting: Int64, durations: Int64) -> int | None:
    """The rank that the others wait for; None when nobody waits much or all wait for each other in turn."""
    waiting = each_waiting.sum(axis=1)
    candidate = int(waiting.argmin())
    others = np.arange(len(waiting)) != candidate
    lost = float(waiting[others].sum()) / max(float(durations.sum(axis=1)[others].sum()), 1.0)
    is_spared = float(waiting[candidate]) <= MAX_OWN_WAITING_SHARE * float(waiting[others].mean())
    return candidate if lost >= MIN_WAITING_SHARE and is_spared else None
