"""Which backend, with which launch, serves which message: decisions over the rows of a measured table, no GPU.

Rules, in this order: what breaks the contract wins only where nothing else can run; a tie within 5 % goes to the
simpler of our own launches, within 2 % to our own kernel rather than a library's; a winner between two sizes that
another backend wins is kept only if it wins clearly. A size between two measured ones is served as the larger of them:
what wins there is never badly wrong for a smaller message, while the other way round costs grow with every byte.
Norms go by rows and the size of a row: their cost is that of the rows that wait for each other, not of bytes alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from fastverify.comm.cuda.launch import Launch, Rule, nearest_row_bytes
from fastverify.comm.gpu.launches import fabric_of
from fastverify.comm.gpu.table import NORM, Op, Row

# Less than this is noise of a few dozen replays.
_MIN_GAIN = 0.05
_MIN_PEER_GAIN = 0.02
# A candidate this much slower than the best of its size is not worth more replays.
HOPELESS = 3.0


@dataclass(frozen=True)
class Pick:
    """One way that may serve a size. `separate_norm`: a sum as planned for it, then the norm."""

    backend: str
    launch: Launch | None
    latency_us: float
    separate_norm: bool = False
    keeps_contract: bool = True
    out_of_place: bool = True


@dataclass(frozen=True)
class Step:
    """Messages of up to `max_bytes`, best pick first; one pick per backend, and one with a norm beside its sum.

    `row_bytes`: the size of a row of a norm, else 0.
    """

    max_bytes: int
    picks: tuple[Pick, ...]
    row_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """Steps for each operation, growing within each size of a row; an operation that nothing runs has none."""

    steps: Mapping[Op, tuple[Step, ...]]

    def find(self, op: Op, num_bytes: int, row_bytes: int = 0) -> tuple[Pick, ...]:
        """Picks for a message, best first; above the largest measured size those of that size.

        A norm needs `row_bytes`: of the nearest size of a row that was measured, the step of as many rows.
        """
        steps = self.steps.get(op, ())
        if not steps:
            return ()
        nearest = nearest_row_bytes(self.row_sizes(op), row_bytes) if row_bytes else 0
        if nearest:
            steps = self.steps_of(op, nearest)
            num_bytes = num_bytes // row_bytes * nearest
        return steps[min(bisect_left([step.max_bytes for step in steps], num_bytes), len(steps) - 1)].picks

    def row_sizes(self, op: Op) -> tuple[int, ...]:
        """Sizes of a row that were measured."""
        return tuple(dict.fromkeys(step.row_bytes for step in self.steps.get(op, ())))

    def steps_of(self, op: Op, row_bytes: int) -> tuple[Step, ...]:
        """The steps of one size of a row."""
        return tuple(step for step in self.steps.get(op, ()) if step.row_bytes == row_bytes)

    def winners(self, op: Op) -> tuple[str, ...]:
        """Backends that win somewhere, in order of size."""
        return tuple(dict.fromkeys(step.picks[0].backend for step in self.steps.get(op, ())))

    def launch_rules(self, fabric: str, op: Op) -> tuple[Rule, ...]:
        """The best launch of our kernels in one kind of memory at every size, won or not."""
        rules = []
        for step in self.steps.get(op, ()):
            own = [pick for pick in step.picks if fabric_of(pick.backend) == fabric and not pick.separate_norm]
            if own and own[0].launch is not None:
                rules.append(Rule(step.max_bytes, own[0].launch, step.row_bytes))
        return tuple(rules)


def make_plan(rows: Sequence[Row]) -> Plan:
    """The decisions, a pure function of the rows."""
    steps: dict[Op, tuple[Step, ...]] = {}
    for op in ("all_reduce", NORM, "all_gather"):
        usable = sorted((row for row in rows if _is_usable(row, op)), key=lambda row: (row.row_bytes, row.num_bytes))
        found: list[Step] = []
        for row_bytes, alike in groupby(usable, lambda row: row.row_bytes):
            ranked = [(size, rank_rows(list(group))) for size, group in groupby(alike, lambda row: row.num_bytes)]
            found += [Step(size, picks, row_bytes) for size, picks in smooth(ranked)]
        if found:
            steps[op] = tuple(found)
    return Plan(steps)


def rank_rows(rows: Sequence[Row]) -> tuple[Pick, ...]:
    """One size, best first: the winner by the rules above, then the others by time."""
    rows = _without_quick(rows)
    others = sorted(rows, key=lambda row: (row.accuracy != "contract", _time(row)))
    best: dict[tuple[str, bool], Pick] = {}
    for row in (_find_winner(_contenders(rows)), *others):
        keeps_contract = row.accuracy == "contract"
        pick = Pick(row.backend, row.launch, _time(row), row.separate_norm, keeps_contract, row.out_of_place)
        best.setdefault((row.backend, row.separate_norm), pick)
    return tuple(best.values())


def smooth(ranked: Sequence[tuple[int, tuple[Pick, ...]]]) -> list[tuple[int, tuple[Pick, ...]]]:
    """Let a lone winner between two sizes of one other backend give way where that one ties."""
    smoothed = list(ranked)
    for index in range(1, len(ranked) - 1):
        before, after = smoothed[index - 1][1][0], ranked[index + 1][1][0]
        size, picks = ranked[index]
        same = next((pick for pick in picks if _way(pick) == _way(before) == _way(after)), picks[0])
        gain = _MIN_GAIN if fabric_of(picks[0].backend) else _MIN_PEER_GAIN
        is_as_good = same.keeps_contract or not picks[0].keeps_contract
        if is_as_good and same.latency_us * (1 - gain) <= picks[0].latency_us:
            smoothed[index] = (size, (same, *(pick for pick in picks if pick is not same)))
    return smoothed


def _way(pick: Pick) -> tuple[str, bool]:
    return pick.backend, pick.separate_norm


def is_hopeless(backend: str, num_bytes: int, rows: Iterable[Row], op: Op) -> bool:
    """Whether the backend lost badly at the nearest measured sizes on both sides, so that this size can be skipped.

    A size that was itself measured, for another operation, is both sides.
    """
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        if _is_usable(row, op):
            by_size.setdefault(row.num_bytes, []).append(row)
    below = max((size for size in by_size if size <= num_bytes), default=None)
    above = min((size for size in by_size if size >= num_bytes), default=None)
    if below is None or above is None:
        return False
    return all(_lost_badly(backend, by_size[size]) for size in (below, above))


def _lost_badly(backend: str, rows: Sequence[Row]) -> bool:
    own_us = min((_time(row) for row in rows if row.backend == backend), default=float("inf"))
    return own_us > HOPELESS * min(map(_time, _contenders(rows)))


def _without_quick(rows: Sequence[Row]) -> list[Row]:
    """The best of a few replays is no rival of a median: it stands only for a backend that has nothing else."""
    thorough = {(row.backend, row.separate_norm) for row in rows if not row.is_quick}
    return [row for row in rows if not row.is_quick or (row.backend, row.separate_norm) not in thorough]


def _contenders(rows: Sequence[Row]) -> list[Row]:
    """Those that may win: all, unless some keep the contract."""
    return [row for row in rows if row.accuracy == "contract"] or list(rows)


def _is_usable(row: Row, op: Op) -> bool:
    return row.op == op and row.correct and row.latency_us is not None


def _find_winner(rows: Sequence[Row]) -> Row:
    peers = [row for row in rows if fabric_of(row.backend) is None]
    own = [row for row in rows if fabric_of(row.backend) is not None]
    fastest_peer = min(peers, key=_time, default=None)
    if not own:
        assert fastest_peer is not None, "a size has at least one row"
        return fastest_peer
    limit_us = min(map(_time, own)) / (1 - _MIN_GAIN)
    simplest = min((row for row in own if _time(row) <= limit_us), key=lambda row: (_complexity(row), _time(row)))
    if fastest_peer is None or _time(fastest_peer) > _time(simplest) * (1 - _MIN_PEER_GAIN):
        return simplest
    # What lost to a library for being simple may still be the faster of the two.
    fastest = min(own, key=_time)
    return fastest if _time(fastest) <= _time(fastest_peer) else fastest_peer


def _complexity(row: Row) -> tuple[bool, int]:
    return row.separate_norm, int(row.launch.algorithm) if row.launch is not None else 0


def _time(row: Row) -> float:
    return float("inf") if row.latency_us is None else row.latency_us
