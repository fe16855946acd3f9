"""Chooses a backend and how it works at each size, by measuring on this machine with these ranks.

For shm that is whether to write past the caches (where cores share none, that is several times faster, and where they
do, slower) and from which size two rounds beat one. It runs once when a communicator is created, takes well under half
a second, and its table stays on the communicator. Every rank measures, the slowest rank's median counts, and all ranks
compute the same answer from the same numbers. It measures float32 all-reduces; other dtypes and the fused norm use the
same thresholds in bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
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
_SIZES = (2 * BYTES_PER_KB, 8 * BYTES_PER_KB, 32 * BYTES_PER_KB, 128 * BYTES_PER_KB, SLOT_BYTES)
# Candidates take turns in blocks: what one leaves in the caches is another's cost in the first calls.
_SETTLING_CALLS = 2
_SHM_BLOCKS, _SHM_CALLS = 3, 9
_GLOO_BLOCKS, _GLOO_CALLS = 1, 3
# A tie goes to the simpler way; less than this is noise of a few dozen calls.
_MIN_GAIN = 0.05


@dataclass(frozen=True)
class Timing:
    """Median over calls of one all-reduce, on the slowest rank."""

    backend: str
    algorithm: str
    streamed: bool
    num_bytes: int
    latency_us: float


@dataclass(frozen=True)
class Choice:
    """What was chosen, why, and the measurements behind it. A threshold of None means "at no size"."""

    backend: str
    reason: str
    two_shot_min_bytes: int | None = None
    stream_min_bytes: int | None = None
    timings: tuple[Timing, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    backend: str
    algorithm: str
    streamed: bool
    blocks: int
    calls: int
    all_reduce: Callable[[torch.Tensor], torch.Tensor]


def choose_auto(group: Group) -> tuple[AllReduceBackend, Choice]:
    """The faster of shm and gloo, or gloo where shm cannot run on some rank."""
    gloo = GlooBackend(group)
    support = _agree(gloo, find_support(group.world_size))
    if not support.ok:
        return gloo, Choice("gloo", f"shm cannot run: {support.reason}")
    shm = ShmBackend(group)
    gloo_candidate = _Candidate("gloo", "all_reduce", False, _GLOO_BLOCKS, _GLOO_CALLS, gloo.all_reduce)
    timings = _measure(gloo, [*_shm_candidates(shm), gloo_candidate])
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


def find_thresholds(timings: Sequence[Timing]) -> tuple[int | None, int | None]:
    """`(two_shot_min_bytes, stream_min_bytes)`: first how to write, then one round or two when written that way."""

    def latency_us(num_bytes: int, algorithms: tuple[str, ...], streamed: bool) -> float:
        return min(
            timing.latency_us
            for timing in timings
            if timing.num_bytes == num_bytes and timing.algorithm in algorithms and timing.streamed == streamed
        )

    sizes = sorted({timing.num_bytes for timing in timings})
    stream_min_bytes = None
    if any(timing.streamed for timing in timings):
        either = ("one_shot", "two_shot")
        stream_min_bytes = find_crossover(
            {size: latency_us(size, either, False) for size in sizes},
            {size: latency_us(size, either, True) for size in sizes},
        )
    streamed = {size: stream_min_bytes is not None and size >= stream_min_bytes for size in sizes}
    two_shot_min_bytes = find_crossover(
        {size: latency_us(size, ("one_shot",), streamed[size]) for size in sizes},
        {size: latency_us(size, ("two_shot",), streamed[size]) for size in sizes},
    )
    return two_shot_min_bytes, stream_min_bytes


def find_crossover(simple_us: Mapping[int, float], other_us: Mapping[int, float]) -> int | None:
    """Smallest size from which the other way is clearly faster at every larger size too."""
    crossover = None
    for num_bytes in sorted(simple_us, reverse=True):
        if other_us[num_bytes] > simple_us[num_bytes] * (1 - _MIN_GAIN):
            break
        crossover = num_bytes
    return crossover


def _finish_shm(
    gloo: GlooBackend, shm: ShmBackend, timings: tuple[Timing, ...], reason: str
) -> tuple[AllReduceBackend, Choice]:
    gloo.close()
    two_shot, stream = find_thresholds([timing for timing in timings if timing.backend == "shm"])
    shm.set_thresholds(
        two_shot_min_bytes=NEVER if two_shot is None else two_shot,
        stream_min_bytes=NEVER if stream is None else stream,
    )
    rounds = "one round at every size" if two_shot is None else f"two rounds from {format_bytes(two_shot)}"
    writes = "cached writes" if stream is None else f"streamed writes from {format_bytes(stream)}"
    return shm, Choice("shm", f"{reason}; {rounds}, {writes}", two_shot, stream, timings)


def _shm_candidates(shm: ShmBackend) -> list[_Candidate]:
    def run(two_shot: bool, streamed: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        def all_reduce(x: torch.Tensor) -> torch.Tensor:
            shm.set_thresholds(two_shot_min_bytes=1 if two_shot else NEVER, stream_min_bytes=1 if streamed else NEVER)
            return shm.all_reduce(x)

        return all_reduce

    return [
        _Candidate("shm", algorithm, streamed, _SHM_BLOCKS, _SHM_CALLS, run(algorithm == "two_shot", streamed))
        for streamed in ((False, True) if shm.can_stream else (False,))
        for algorithm in ("one_shot", "two_shot")
    ]


def _measure(gloo: GlooBackend, candidates: Sequence[_Candidate]) -> tuple[Timing, ...]:
    """Time every candidate at every size, in turn, and agree on the slowest rank's medians."""
    medians_us: list[float] = []
    for num_bytes in _SIZES:
        source = torch.linspace(-1.0, 1.0, num_bytes // torch.float32.itemsize)
        samples_ns: list[list[int]] = [[] for _ in candidates]
        for block in range(max(candidate.blocks for candidate in candidates)):
            for candidate, ns in zip(candidates, samples_ns, strict=True):
                if block < candidate.blocks:
                    ns += _time_block(candidate, source)
        medians_us += [ns_to_us(statistics.median(ns)) for ns in samples_ns]
    slowest_us = gloo.all_gather(torch.tensor(medians_us)).amax(0).tolist()
    keys = ((num_bytes, candidate) for num_bytes in _SIZES for candidate in candidates)
    return tuple(
        Timing(candidate.backend, candidate.algorithm, candidate.streamed, num_bytes, latency_us)
        for (num_bytes, candidate), latency_us in zip(keys, slowest_us, strict=True)
    )


def _time_block(candidate: _Candidate, source: torch.Tensor) -> list[int]:
    samples_ns = []
    for _ in range(_SETTLING_CALLS + candidate.calls):
        x = source.clone()
        start_ns = perf_counter_ns()
        candidate.all_reduce(x)
        samples_ns.append(perf_counter_ns() - start_ns)
    return samples_ns[_SETTLING_CALLS:]


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
