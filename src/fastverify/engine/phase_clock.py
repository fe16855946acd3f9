"""Where the time of a cycle goes: names the running phase to the communicators, and adds up its time on this rank.

Compute and collectives of a phase are told apart by reading the communicators' own totals before and after. With a
profiler on, each phase is also a span `fastverify.<phase>`. Knows nothing of what runs inside a phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from torch.profiler import record_function

from fastverify.comm.communicator import Communicator
from fastverify.comm.stats import CallTotal
from fastverify.units import NS_PER_S


@dataclass
class PhaseTime:
    """Wall time of one phase, and how much of it was spent in collectives."""

    total_ns: int = 0
    all_reduce_ns: int = 0
    gather_ns: int = 0

    @property
    def compute_ns(self) -> int:
        """Everything but the collectives."""
        return self.total_ns - self.all_reduce_ns - self.gather_ns


NO_TIME = PhaseTime()


class PhaseClock:
    """Times phases since the last `restart`. Phases do not nest."""

    def __init__(self, communicators: Sequence[Communicator]) -> None:
        self._communicators = communicators
        self._times: dict[str, PhaseTime] = {}
        self._start_ns = perf_counter_ns()
        self._is_profiling = False

    def set_profiling(self, is_profiling: bool) -> None:
        """Show phases and collectives to a torch profiler, or stop doing so."""
        self._is_profiling = is_profiling
        for communicator in self._communicators:
            communicator.set_profiling(is_profiling)

    def restart(self) -> None:
        """Begin a new cycle."""
        self._times = {}
        self._start_ns = perf_counter_ns()

    @property
    def elapsed_ns(self) -> int:
        """Since the last restart."""
        return perf_counter_ns() - self._start_ns

    def time(self, phase: str) -> PhaseTime:
        """What `phase` took since the last restart."""
        return self._times.get(phase, NO_TIME)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as `name`; the collectives in it carry that name too."""
        for communicator in self._communicators:
            communicator.set_phase(name)
        time = self._times.setdefault(name, PhaseTime())
        all_reduce_ns, gather_ns = self._collective_ns()
        start_ns = perf_counter_ns()
        if self._is_profiling:
            with record_function(f"fastverify.{name}"):
                yield
        else:
            yield
        time.total_ns += perf_counter_ns() - start_ns
        all_reduce_end_ns, gather_end_ns = self._collective_ns()
        time.all_reduce_ns += all_reduce_end_ns - all_reduce_ns
        time.gather_ns += gather_end_ns - gather_ns

    def collectives(self) -> list[dict[str, Any]]:
        """Everything the communicators ran, by phase and operation."""
        totals: dict[tuple[str, str], CallTotal] = {}
        for communicator in self._communicators:
            for key, total in communicator.stats.snapshot().totals.items():
                totals[key.phase, key.op] = totals.get((key.phase, key.op), CallTotal()) + total
        return [
            {"phase": phase, "op": op, "count": t.calls, "bytes": t.total_bytes, "seconds": t.total_ns / NS_PER_S}
            for (phase, op), t in totals.items()
        ]

    def _collective_ns(self) -> tuple[int, int]:
        """Growing time of all-reduces and of gathers over all communicators."""
        total = gather = 0
        for communicator in self._communicators:
            by_op = communicator.stats.ns_by_op
            total += sum(by_op.values())
            gather += by_op.get("all_gather", 0)
        return total - gather, gather
