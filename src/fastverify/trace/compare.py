"""Two profiles side by side: before and after a change, or plain and speculative decoding, by the same definitions.

Passes are matched by kind, phase and batch; rows may differ (another number of drafts). Where one profile has plain and
the other verify passes of a batch, these are matched too, since both are the target's decoding pass. What has no
partner is listed, not dropped.
"""

from __future__ import annotations

from fastverify.trace.profile import SCHEMA_VERSION, PassRow, Profile, Row
from fastverify.trace.spans import PassKind
from fastverify.trace.verdict import describe, format_us

# Field of PassRow -> the words of a table.
MEASURES = {
    "wall_us": "wall",
    "compute_us": "compute",
    "exposed_communication_us": "exposed comm",
    "gap_us": "gaps",
    "launch_gap_us": "waiting for launch",
    "idle_before_us": "idle before",
    "all_reduces_per_pass": "all-reduces",
    "collectives_per_pass": "collectives",
    "kernels_per_pass": "kernels",
}
_DECODING = (PassKind.VERIFY, PassKind.PLAIN)


class Change(Row):
    """One measure of one matched pass; `ratio` is after over before, None when before is 0."""

    measure: str
    before: float
    after: float
    ratio: float | None


class MatchedPass(Row):
    """Two rows that answer the same question."""

    before: str
    after: str
    kind: PassKind
    batch: int | None
    changes: tuple[Change, ...]
    backends_before: tuple[str, ...]
    backends_after: tuple[str, ...]

    @property
    def name(self) -> str:
        """Both descriptions, or the one they share."""
        return self.after if self.before == self.after else f"{self.before} -> {self.after}"

    def change(self, measure: str) -> Change:
        """The change of one measure; KeyError for a name outside MEASURES."""
        return {one.measure: one for one in self.changes}[measure]


class Comparison(Row):
    """Matched passes, decoding first, then most wall time before; and the rows of either side without a partner."""

    schema_version: int = SCHEMA_VERSION
    verdict: str
    matched: tuple[MatchedPass, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


def compare(before: Profile, after: Profile) -> Comparison:
    """Match the passes of two profiles."""
    left, right = list(before.passes), list(after.passes)
    pairs: list[tuple[PassRow, PassRow]] = []
    for is_match in (_same_rows, _same_pass, _plain_and_verify):
        for row in list(left):
            partner = next((other for other in right if is_match(row, other)), None)
            if partner is not None:
                left.remove(row)
                right.remove(partner)
                pairs.append((row, partner))
    pairs.sort(key=lambda pair: (pair[1].kind not in _DECODING, -pair[0].wall_us * pair[0].count))
    matched = tuple(_matched(row, partner) for row, partner in pairs)
    return Comparison(
        verdict=_verdict(matched),
        matched=matched,
        only_before=tuple(describe(row) for row in left),
        only_after=tuple(describe(row) for row in right),
    )


def _same_rows(before: PassRow, after: PassRow) -> bool:
    return _same_pass(before, after) and before.rows == after.rows


def _same_pass(before: PassRow, after: PassRow) -> bool:
    return (before.kind, before.phase, before.batch) == (after.kind, after.phase, after.batch)


def _plain_and_verify(before: PassRow, after: PassRow) -> bool:
    return before.batch == after.batch and {before.kind, after.kind} == {PassKind.PLAIN, PassKind.VERIFY}


def _matched(before: PassRow, after: PassRow) -> MatchedPass:
    return MatchedPass(
        before=describe(before),
        after=describe(after),
        kind=after.kind,
        batch=after.batch,
        changes=tuple(_change(name, getattr(before, name), getattr(after, name)) for name in MEASURES),
        backends_before=before.backends,
        backends_after=after.backends,
    )


def _change(measure: str, before: float, after: float) -> Change:
    return Change(measure=measure, before=before, after=after, ratio=after / before if before else None)


def _verdict(matched: tuple[MatchedPass, ...]) -> str:
    if not matched:
        return "No pass of one profile has a partner in the other: the batches or the kinds of passes differ."
    one = matched[0]
    wall, exposed = one.change("wall_us"), one.change("exposed_communication_us")
    text = f"{one.name}: {format_us(wall.before)} -> {format_us(wall.after)}"
    text += f" ({wall.ratio - 1:+.0%})" if wall.ratio is not None else ""
    return f"{text}; exposed communication {format_us(exposed.before)} -> {format_us(exposed.after)}."
