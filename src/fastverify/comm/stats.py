"""What a communicator ran: calls, bytes and time, by phase of the decoding cycle, operation and message size.

Time is this rank's wall time in the call. On the CPU that holds the collective and the wait for late ranks. On a GPU a
call only enqueues, so it is the time of the launch and says nothing about the collective: that is for a profile or
`fastverify bench`. A call that a CUDA graph captures counts once, when it is captured, and its replays count nothing.
It knows nothing about backends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class CallKey(NamedTuple):
    """`num_bytes` is one rank's input of one call."""

    phase: str
    op: str
    num_bytes: int


@dataclass(frozen=True)
class CallTotal:
    """Sums over the calls of one key or of several."""

    calls: int = 0
    total_bytes: int = 0
    total_ns: int = 0

    def __add__(self, other: CallTotal) -> CallTotal:
        return CallTotal(self.calls + other.calls, self.total_bytes + other.total_bytes, self.total_ns + other.total_ns)

    def __sub__(self, other: CallTotal) -> CallTotal:
        return CallTotal(self.calls - other.calls, self.total_bytes - other.total_bytes, self.total_ns - other.total_ns)


@dataclass(frozen=True)
class CommSnapshot:
    """Totals at one moment. The difference of two snapshots is what ran between them."""

    totals: Mapping[CallKey, CallTotal]

    def __sub__(self, earlier: CommSnapshot) -> CommSnapshot:
        differences = {key: total - earlier.totals.get(key, CallTotal()) for key, total in self.totals.items()}
        return CommSnapshot({key: total for key, total in differences.items() if total.calls})

    def total(self, *, phase: str | None = None, op: str | None = None, num_bytes: int | None = None) -> CallTotal:
        """Sum over every key that matches what is given."""
        wanted = (phase, op, num_bytes)
        return _sum(
            total
            for key, total in self.totals.items()
            if all(want is None or want == have for want, have in zip(wanted, key, strict=True))
        )

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases that ran something, in order of first use."""
        return tuple(dict.fromkeys(key.phase for key in self.totals))


class CommStats:
    """Growing totals. `add` runs on every collective and costs well under a microsecond."""

    def __init__(self) -> None:
        # key -> [calls, total_ns]; bytes follow from the key.
        self._counts: dict[tuple[str, str, int], list[int]] = {}
        # Nanoseconds of each operation over all phases and sizes: cheap to read around one pass.
        self.ns_by_op: dict[str, int] = {}

    def add(self, phase: str, op: str, num_bytes: int, ns: int) -> None:
        """Record one call."""
        self.ns_by_op[op] = self.ns_by_op.get(op, 0) + ns
        key = (phase, op, num_bytes)
        count = self._counts.get(key)
        if count is None:
            self._counts[key] = [1, ns]
        else:
            count[0] += 1
            count[1] += ns

    def snapshot(self) -> CommSnapshot:
        """Copy of the totals so far."""
        return CommSnapshot(
            {
                CallKey(*key): CallTotal(calls=calls, total_bytes=calls * key[2], total_ns=ns)
                for key, (calls, ns) in self._counts.items()
            }
        )


def _sum(totals: Iterable[CallTotal]) -> CallTotal:
    return sum(totals, CallTotal())
