"""Time of one collective inside the engine, for other settings than the measured ones.

In an engine a call takes longer than in the benchmark: ranks arrive at different times. What was measured in the engine
stays; another message size scales it by the table's ratio; another backend starts from the table and adds a share of
the compute between two collectives as waiting. Source: docs/cost-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fastverify.servers.measurement import CollectiveCost
from fastverify.tuning import priors
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.interval import Interval, total
from fastverify.tuning.knobs import Knobs
from fastverify.tuning.priors import Prior
from fastverify.units import US_PER_MS

GATHER_OP = "all_gather"
FUSED_OP = "all_reduce_residual_rmsnorm"
# Its ranks sleep in the kernel while its own threads work.
SLEEPING_BACKEND = "gloo"
# Every all-reduce of a target pass is followed by a norm; in an EAGLE-3 layer only the attention's is.
TARGET_FUSABLE_SHARE = 1.0
DRAFT_FUSABLE_SHARE = 1.0 / 3.0
# One value and one index per row and rank instead of the logits.
ARGMAX_PAIR_BYTES = 16


@dataclass(frozen=True)
class Calls:
    """Equal collectives of one pass, as measured."""

    op: str
    count: float
    num_bytes: float
    us: float
    new_bytes: float | None = None
    """Message size under new settings, where it changes; `us` is always the time at `num_bytes`."""

    @classmethod
    def of(cls, cost: CollectiveCost, level: float) -> Calls:
        """Per-call numbers from per-pass ones; `level` brings them to the level of the cycle cost's phases."""
        return cls(
            op=cost.op,
            count=cost.per_pass,
            num_bytes=cost.bytes_per_pass / cost.per_pass,
            us=level * cost.ms_per_pass * US_PER_MS / cost.per_pass,
        )

    @property
    def is_gather(self) -> bool:
        """All-gathers are not in the all-reduce table."""
        return self.op == GATHER_OP

    @property
    def is_fused(self) -> bool:
        """Whether the norm is part of the call."""
        return self.op == FUSED_OP


def calls_of_phase(collectives: Iterable[CollectiveCost], phase: str, level: float = 1.0) -> tuple[Calls, ...]:
    """Every kind of collective that one pass of a phase makes."""
    return tuple(Calls.of(cost, level) for cost in collectives if cost.phase == phase and cost.per_pass > 0)


@dataclass(frozen=True)
class CollectiveModel:
    """Prices calls under new settings. `reference` are the settings under which they were measured."""

    table: AllReduceTable
    reference: Knobs
    norm_us: Prior = priors.NORM_US
    """What one separate norm takes on this kind of machine."""

    def pass_ms(
        self, calls: Iterable[Calls], knobs: Knobs, *, compute_ms: float, size_factor: float = 1.0
    ) -> tuple[Interval, set[Prior]]:
        """All-reduces or gathers of one pass, in ms, and the priors that the answer rests on.

        `compute_ms` is what the pass computes between all its collectives; `size_factor` scales the messages.
        """
        calls = tuple(calls)
        used: set[Prior] = set()
        gap_us = compute_ms * US_PER_MS / max(sum(item.count for item in calls), 1.0)
        terms = []
        for item in calls:
            # Every collective of a kind shares its error, so counts multiply instead of averaging it away.
            each, assumed = self._call_us(item, knobs, (item.new_bytes or item.num_bytes) * size_factor, gap_us)
            terms.append(each.scaled(item.count / US_PER_MS))
            used |= assumed
        return total(terms), used

    def compute_relief(self, knobs: Knobs, used: set[Prior]) -> Interval:
        """What a change of backend does to the compute between its calls."""
        if knobs.comm_backend == self.reference.comm_backend or self.reference.comm_backend != SLEEPING_BACKEND:
            return Interval.exact(1.0)
        used.add(priors.COMPUTE_RELIEF)
        return priors.COMPUTE_RELIEF.value

    def with_fusion(
        self, calls: Iterable[Calls], knobs: Knobs, *, fusable_share: float
    ) -> tuple[tuple[Calls, ...], float]:
        """The calls of a pass after turning fusion on or off, and how many norms moved into them (negative: out).

        `fusable_share`: the part of the pass's all-reduces that a residual add and a norm follow.
        """
        calls = tuple(calls)
        if knobs.fuse_rmsnorm == self.reference.fuse_rmsnorm:
            return calls, 0.0
        gathers = tuple(item for item in calls if item.is_gather)
        reduces = [item for item in calls if not item.is_gather]
        if not knobs.fuse_rmsnorm:
            moved = sum(item.count for item in reduces if item.is_fused)
            return (*(self._unfused(item) for item in reduces), *gathers), -moved
        moved = fusable_share * sum(item.count for item in reduces)
        fused = [self._fused(item, item.count * fusable_share) for item in reduces]
        left = [replace(item, count=item.count * (1.0 - fusable_share)) for item in reduces]
        return (*(item for item in (*fused, *left) if item.count > 0), *gathers), moved

    def _fused(self, item: Calls, count: float) -> Calls:
        return replace(item, op=FUSED_OP, count=count, us=item.us + self._fusion_us(item.num_bytes))

    def _unfused(self, item: Calls) -> Calls:
        if not item.is_fused:
            return item
        return replace(item, op="all_reduce", us=max(item.us - self._fusion_us(item.num_bytes), 0.0))

    def _fusion_us(self, num_bytes: float) -> float:
        """What fusing the norm adds to one call of the reference backend, between nothing and a whole norm."""
        alone = self.table.latency_us(self.reference.comm_backend, num_bytes, fused=False)
        fused = self.table.latency_us(self.reference.comm_backend, num_bytes, fused=True)
        if alone is None or fused is None:
            return 0.0
        return min(max(fused.mid - alone.mid, 0.0), self.norm_us.value.mid)

    def _call_us(self, item: Calls, knobs: Knobs, num_bytes: float, gap_us: float) -> tuple[Interval, set[Prior]]:
        if knobs.comm_backend == self.reference.comm_backend:
            return self._rescaled(item, num_bytes), set()
        new = self.table.latency_us(knobs.comm_backend, num_bytes, fused=item.is_fused)
        if new is None:
            return priors.NO_ROW.value.scaled(item.us), {priors.NO_ROW}
        used = {priors.SKEW}
        if item.is_gather:
            new, used = new * priors.GATHER.value, used | {priors.GATHER}
        return new + self._waiting_us(item, gap_us), used

    def _rescaled(self, item: Calls, num_bytes: float) -> Interval:
        """Measured time at another message size."""
        if num_bytes == item.num_bytes:
            return Interval.exact(item.us)
        old = self.table.latency_us(self.reference.comm_backend, item.num_bytes, fused=item.is_fused)
        new = self.table.latency_us(self.reference.comm_backend, num_bytes, fused=item.is_fused)
        if old is None or new is None or old.mid == 0:
            # Without a table: between latency-bound (no change) and bandwidth-bound (proportional).
            ends = (item.us, item.us * num_bytes / item.num_bytes)
            return Interval(low=min(ends), mid=sum(ends) / 2, high=max(ends))
        # A table's change within its own noise is no change.
        mid = item.us * new.mid / old.mid
        return Interval.around(mid, min(mid, item.us) * 0.97, max(mid, item.us) * 1.03)

    def _waiting_us(self, item: Calls, gap_us: float) -> Interval:
        """Waiting for the other ranks; never more than what the measured call lost over the benchmark."""
        waiting = priors.SKEW.value.scaled(gap_us)
        measured = self.table.latency_us(self.reference.comm_backend, item.num_bytes, fused=item.is_fused)
        if measured is None:
            return waiting
        return waiting.at_most(max(item.us - measured.low, 0.0))


def total_ms(calls: Iterable[Calls]) -> float:
    """Measured time of one pass's collectives."""
    return sum(item.count * item.us for item in calls) / US_PER_MS
