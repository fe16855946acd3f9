"""Chooses a backend, and the size from which two rounds beat one, by measuring on this machine with these ranks.

It runs once when a communicator is created, takes well under half a second, and its table stays on the communicator.
Every rank measures, the slowest rank's median counts, and all ranks compute the same answer from the same numbers.
It measures all-reduces of float32; other dtypes and the fused norm use the same crossover in bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import torch

from fastverify.comm.backend import AllReduceBackend, Support
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group
from fastverify.comm.shm import NEVER, SLOT_BYTES, ShmBackend, find_support
from fastverify.errors import EnvironmentMissingError
from fastverify.units import BYTES_PER_KB, format_bytes, ns_to_us

# The last one is the longest piece that shm sends at once.
_SIZES = (8 * BYTES_PER_KB, 32 * BYTES_PER_KB, 128 * BYTES_PER_KB, SLOT_BYTES)
# Arbitrary: enough for a median to ignore a pre-empted call, few enough for gloo's milliseconds on shared cores.
_SHM_ROUNDS = 31
_GLOO_ROUNDS = 3


@dataclass(frozen=True)
class Timing:
    """Median over calls of one all-reduce, on the slowest rank."""

    backend: str
    algorithm: str
    num_bytes: int
    latency_us: float


@dataclass(frozen=True)
class Choice:
    """What was chosen, why, and the measurements behind it. `two_shot_min_bytes` is None where one round always won."""

    backend: str
    reason: str
    two_shot_min_bytes: int | None = None
    timings: tuple[Timing, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    backend: str
    algorithm: str
    rounds: int
    all_reduce: Callable[[torch.Tensor], torch.Tensor]


def choose_auto(group: Group) -> tuple[AllReduceBackend, Choice]:
    """The faster of shm and gloo, or gloo where shm cannot run on some rank."""
    gloo = GlooBackend(group)
    support = _agree(gloo, find_support(group.world_size))
    if not support.ok:
        return gloo, Choice("gloo", f"shm cannot run: {support.reason}")
    shm = ShmBackend(group)
    timings = _measure(gloo, [*_shm_candidates(shm), _Candidate("gloo", "all_reduce", _GLOO_ROUNDS, gloo.all_reduce)])
    shm_us, gloo_us = _best_total_us(timings, "shm"), _best_total_us(timings, "gloo")
    reason = f"measured over {len(_SIZES)} sizes: shm {shm_us:.0f} us, gloo {gloo_us:.0f} us"
    if gloo_us < shm_us:
        shm.close()
        return gloo, Choice("gloo", reason, timings=timings)
    return _finish_shm(gloo, shm, timings, reason)


def choose_shm(group: Group) -> tuple[AllReduceBackend, Choice]:
    """The shm backend with its measured crossover. Raises EnvironmentMissingError on every rank if one cannot."""
    gloo = GlooBackend(group)
    support = _agree(gloo, find_support(group.world_size))
    if not support.ok:
        raise EnvironmentMissingError(f"the shm backend cannot run: {support.reason}. Use auto or gloo.")
    shm = ShmBackend(group)
    return _finish_shm(gloo, shm, _measure(gloo, _shm_candidates(shm)), "asked for")


def choose_gloo(group: Group) -> tuple[AllReduceBackend, Choice]:
    """The gloo backend; nothing to measure."""
    return GlooBackend(group), Choice("gloo", "asked for")


def find_crossover(timings: Sequence[Timing]) -> int | None:
    """Smallest measured size from which two_shot is the faster one at every larger size too."""
    by_size: dict[int, dict[str, float]] = {}
    for timing in timings:
        if timing.backend == "shm":
            by_size.setdefault(timing.num_bytes, {})[timing.algorithm] = timing.latency_us
    crossover = None
    for num_bytes in sorted(by_size, reverse=True):
        if by_size[num_bytes]["two_shot"] >= by_size[num_bytes]["one_shot"]:
            break
        crossover = num_bytes
    return crossover


def _finish_shm(
    gloo: GlooBackend, shm: ShmBackend, timings: tuple[Timing, ...], reason: str
) -> tuple[AllReduceBackend, Choice]:
    gloo.close()
    crossover = find_crossover(timings)
    shm.set_two_shot_min_bytes(NEVER if crossover is None else crossover)
    rounds = "one round at every size" if crossover is None else f"two rounds from {format_bytes(crossover)}"
    return shm, Choice("shm", f"{reason}; {rounds}", crossover, timings)


def _shm_candidates(shm: ShmBackend) -> list[_Candidate]:
    def run(two_shot_min_bytes: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def all_reduce(x: torch.Tensor) -> torch.Tensor:
            shm.set_two_shot_min_bytes(two_shot_min_bytes)
            return shm.all_reduce(x)

        return all_reduce

    return [
        _Candidate("shm", "one_shot", _SHM_ROUNDS, run(NEVER)),
        _Candidate("shm", "two_shot", _SHM_ROUNDS, run(1)),
    ]


def _measure(gloo: GlooBackend, candidates: Sequence[_Candidate]) -> tuple[Timing, ...]:
    """Time every candidate at every size, interleaved, and agree on the slowest rank's medians."""
    samples: dict[tuple[int, int], list[int]] = {}
    for num_bytes in _SIZES:
        source = torch.linspace(-1.0, 1.0, num_bytes // torch.float32.itemsize)
        x = torch.empty_like(source)
        for round_index in range(max(candidate.rounds for candidate in candidates)):
            for index, candidate in enumerate(candidates):
                if round_index < candidate.rounds:
                    x.copy_(source)
                    start_ns = perf_counter_ns()
                    candidate.all_reduce(x)
                    samples.setdefault((num_bytes, index), []).append(perf_counter_ns() - start_ns)
    medians_us = torch.tensor([ns_to_us(statistics.median(values)) for values in samples.values()])
    slowest_us = gloo.all_gather(medians_us).amax(0).tolist()
    return tuple(
        Timing(candidates[index].backend, candidates[index].algorithm, num_bytes, latency_us)
        for (num_bytes, index), latency_us in zip(samples, slowest_us, strict=True)
    )


def _best_total_us(timings: Sequence[Timing], backend: str) -> float:
    """Sum over sizes of the backend's best algorithm."""
    return sum(
        min(timing.latency_us for timing in timings if timing.backend == backend and timing.num_bytes == num_bytes)
        for num_bytes in _SIZES
    )


def _agree(gloo: GlooBackend, support: Support) -> Support:
    """Ranks may differ (a rank with another environment); all must take the same way."""
    all_ok = gloo.all_gather(torch.tensor([support.ok])).flatten().tolist()
    if all(all_ok) or not support.ok:
        return support
    unable = [rank for rank, ok in enumerate(all_ok) if not ok]
    return Support(ok=False, reason=f"rank(s) {unable} cannot")
