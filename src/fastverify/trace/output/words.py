"""Cells that every output shares: the same rounding and the same words in table, Markdown and page."""

from __future__ import annotations

from fastverify.trace.compare import MEASURES, MatchedPass
from fastverify.trace.profile import CollectiveRow, PassRow, Profile, RankRow
from fastverify.trace.verdict import describe, format_us
from fastverify.units import format_bytes

PASS_COLUMNS = ("passes", "wall", "compute", "exposed comm", "gaps", "collectives")
COLLECTIVE_COLUMNS = ("collective", "per pass", "size", "median", "min", "max", "sum")
RANK_COLUMNS = ("rank", "span", "compute", "exposed comm", "idle", "waiting", "transfer")
LAUNCH_BOUND_NOTE = "AR: all-reduces. L: launch-bound, the host launches too late for a fifth of the pass."
# Arbitrary: a smaller part of the waiting misleads nobody.
FIRST_SHARE = 0.1
COMPARISON_COLUMNS = ("pass", "measure", "before", "after", "ratio")


def pass_cells(row: PassRow) -> tuple[str, ...]:
    """One line of the table of passes, in the order of PASS_COLUMNS."""
    collectives = f"{row.collectives_per_pass:g}"
    if row.all_reduces_per_pass:
        collectives += f" ({row.all_reduces_per_pass:g} AR)"
    return (
        f"{row.count} x {describe(row)}",
        format_us(row.wall_us),
        format_us(row.compute_us),
        with_share(row.exposed_communication_us, row.wall_us),
        with_share(row.gap_us, row.wall_us) + (" L" if row.is_launch_bound else ""),
        collectives,
    )


def about_passes(profile: Profile) -> str:
    """How the passes were found, and what one rank alone cannot tell."""
    text = f"Passes by: {profile.rule}; {profile.coverage:.1%} of the kernel time is in a pass."
    world_size = max(rank.world_size for rank in profile.ranks)
    if len(profile.ranks) == 1 and world_size > 1:
        text += f" One rank of {world_size}: its collectives include waiting for the others."
    return text


def rank_cells(rank: RankRow) -> tuple[str, ...]:
    """One line of the table of ranks, in the order of RANK_COLUMNS."""
    totals = rank.totals
    return (
        f"{rank.rank} straggler" if rank.is_straggler else str(rank.rank),
        format_us(totals.span_us),
        format_us(totals.compute_us),
        with_share(totals.exposed_communication_us, totals.span_us),
        with_share(totals.idle_us, totals.span_us),
        "-" if rank.waiting_us is None else format_us(rank.waiting_us),
        "-" if rank.transfer_us is None else format_us(rank.transfer_us),
    )


def first_collective_note(profile: Profile) -> str | None:
    """What the first collective adds to the table of ranks; None where it is no matter."""
    waits = [rank for rank in profile.ranks if (rank.first_waiting_us or 0.0) > FIRST_SHARE * (rank.waiting_us or 0.0)]
    if not waits:
        return None
    parts = [f"{format_us(rank.first_waiting_us or 0.0)} on rank {rank.rank}" for rank in waits]
    return (
        f"Of the waiting, {' and '.join(parts)} {'is' if len(waits) == 1 else 'are'} in the first collective: the "
        "profilers of the ranks do not start together. Rows of passes are medians and leave it out."
    )


def comparison_cells(one: MatchedPass) -> list[tuple[str, ...]]:
    """Lines of one matched pass, in the order of COMPARISON_COLUMNS; the name stands in the first."""
    lines: list[tuple[str, ...]] = []
    for change in one.changes:
        is_time = change.measure.endswith("_us")
        before, after = (format_us(v) if is_time else f"{v:g}" for v in (change.before, change.after))
        ratio = "-" if change.ratio is None else f"{change.ratio:.3f}"
        lines.append(("" if lines else one.name, MEASURES[change.measure], before, after, ratio))
    return lines


def collective_cells(row: CollectiveRow) -> tuple[str, ...]:
    """One line of the table of collectives, in the order of COLLECTIVE_COLUMNS."""
    how = " ".join(word for word in (row.algorithm, row.protocol) if word)
    name = f"{row.op.replace('_', '-')}, {row.backend.replace('_', ' ')}{', ' + how if how else ''}"
    return (
        name + (", fused with norm" if row.is_fused else ""),
        f"{row.count_per_pass:g}" if row.count_per_pass == int(row.count_per_pass) else f"{row.count_per_pass:.1f}",
        "unknown" if row.num_bytes is None else format_bytes(row.num_bytes),
        format_us(row.median_us),
        format_us(row.min_us),
        format_us(row.max_us),
        format_us(row.us_per_pass),
    )


def with_share(part_us: float, whole_us: float) -> str:
    """`2.17 ms 4%`."""
    share = part_us / whole_us if whole_us else 0.0
    return f"{format_us(part_us)} {share:.0%}" if part_us else "0"


def segments(row: PassRow) -> tuple[tuple[str, float], ...]:
    """The disjoint parts of the wall span of a pass: compute, exposed communication, other busy time, idle times."""
    other_us = max(row.busy_us - row.compute_us - row.exposed_communication_us, 0.0)
    rest_us = max(row.gap_us - row.launch_gap_us - row.graph_gap_us, 0.0)
    return (
        ("compute", row.compute_us),
        ("exposed communication", row.exposed_communication_us),
        ("copies", other_us),
        ("gaps in a graph", row.graph_gap_us),
        ("waiting for launch", row.launch_gap_us),
        ("other gaps", rest_us),
    )
