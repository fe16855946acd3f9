"""One sentence that says what a profile shows: the pass that decides, its collectives, what is exposed, what is idle.

Says only what the rows hold. The pass that decides is verify before plain before mixed before prefill.
"""

from __future__ import annotations

from fastverify.trace.profile import PassRow, Profile
from fastverify.trace.spans import PassKind
from fastverify.units import US_PER_MS, format_ms

# Arbitrary: less waiting than this share of the communication is not worth a clause.
MIN_WAITING_SHARE = 0.1
_ORDER = (PassKind.VERIFY, PassKind.PLAIN, PassKind.MIXED, PassKind.PREFILL, PassKind.OTHER)


def main_row(profile: Profile) -> PassRow | None:
    """The row that a reader asks about first: verify before plain before prefill, then the most wall time."""
    for kind in _ORDER:
        rows = profile.passes_of(kind)
        if rows:
            return max(rows, key=lambda row: row.count * row.wall_us)
    return None


def headline(profile: Profile) -> str:
    """The verdict line of a profile."""
    row = main_row(profile)
    if row is None:
        return _without_passes(profile)
    parts = [f"{_name(row)} takes {format_us(row.wall_us)} (median of {row.count})"]
    if row.collectives_per_pass:
        parts.append(_communication(row))
    else:
        parts.append("it makes no collectives")
    if row.gap_us > 0.05 * row.wall_us:
        parts.append(_gaps(row))
    straggler = next((rank for rank in profile.ranks if rank.is_straggler), None)
    if straggler is not None:
        others = [rank.rank for rank in profile.ranks if rank is not straggler]
        who = f"rank {others[0]} waits" if len(others) == 1 else "the others wait"
        parts.append(f"{who} for rank {straggler.rank}")
    return "; ".join(parts) + "."


def format_us(us: float) -> str:
    """Microseconds in the unit a reader expects."""
    return format_ms(us / US_PER_MS)


def describe(row: PassRow) -> str:
    """`verify, batch 4, 16 rows`."""
    words = [row.phase.replace("_", " ") or row.kind.value]
    if row.batch is not None:
        words.append(f"batch {row.batch}")
    if row.rows is not None:
        words.append(f"{row.rows} rows" if row.rows != 1 else "1 row")
    return ", ".join(words)


def _name(row: PassRow) -> str:
    noun = "step" if row.kind is PassKind.OTHER else "pass"
    about = [f"batch {row.batch}"] if row.batch is not None else []
    about += [f"{row.rows} rows" if row.rows != 1 else "1 row"] if row.rows is not None else []
    kind = "a profiled" if row.kind is PassKind.OTHER else f"a {row.kind.value}"
    return f"{kind} {noun}{' (' + ', '.join(about) + ')' if about else ''}".capitalize()


def _communication(row: PassRow) -> str:
    share = row.exposed_communication_us / row.wall_us if row.wall_us else 0.0
    names = " and ".join(name.replace("_", " ") for name in row.backends[:3])
    others = row.collectives_per_pass - row.all_reduces_per_pass
    counts = [_count(row.all_reduces_per_pass, "all-reduce")] if row.all_reduces_per_pass else []
    if others:
        counts.append(_count(others, "other collective" if counts else "collective"))
    cost = f"cost {format_us(row.exposed_communication_us)} of it with no compute under them ({share:.0%})"
    if row.waiting_us is not None and row.waiting_us > MIN_WAITING_SHARE * row.communication_us:
        cost += f", {format_us(row.waiting_us)} of that waiting for other ranks"
    return f"{' and '.join(counts)} ({names}) {cost}"


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def _gaps(row: PassRow) -> str:
    share = row.gap_us / row.wall_us
    if row.is_launch_bound:
        return f"nothing runs for {share:.0%} of it, mostly waiting for the host to launch"
    return f"nothing runs for {share:.0%} of it"


def _without_passes(profile: Profile) -> str:
    totals = profile.totals
    if not totals.num_kernels:
        return "The file holds no device work and no operators: there is nothing to cost."
    share = totals.exposed_communication_us / totals.span_us if totals.span_us else 0.0
    return (
        f"No pass is recognised; over the whole file {totals.num_collectives} collectives cost "
        f"{format_us(totals.exposed_communication_us)} with no compute under them ({share:.0%} of the span)."
    )
