"""Time of one GPU call inside a CUDA graph: N dependent calls captured, replayed between events, divided by N.

It does not know what a call does, nor the other ranks: each rank times itself, and whoever uses it takes the slowest
rank's median. An all-reduce in place depends on the one before it, so its numbers grow with every call:
`num_safe_calls` keeps them finite and `chain_factor` says what must come out, so that every timed graph can be checked.
Run everything, the warm calls included, on one side stream (`with torch.cuda.stream(timing_stream(device))`): a capture
cannot use the default stream, and a backend may refuse a second one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import torch

from fastverify.errors import ConfigError
from fastverify.units import US_PER_MS

Work = Callable[[], object]
# Arbitrary: what a reader of a median should be told. Undisturbed replays stay far within both.
_WIDE_IQR = 0.25
_LATE_FACTOR = 2.0
_LATE_SHARE = 0.05


@dataclass(frozen=True)
class Spread:
    """Samples in short. `remark` is empty unless they lie so far apart that the median alone would mislead."""

    median_us: float
    iqr_us: float
    remark: str


@cache
def timing_stream(device: torch.device) -> torch.cuda.Stream:
    """The one side stream of a device on which calls are warmed, captured and replayed."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def capture(call: Work, num_calls: int, *, like: torch.cuda.CUDAGraph | None = None) -> torch.cuda.CUDAGraph:
    """A graph of `num_calls` calls, one after the other; nothing runs yet.

    `call` must have run once before: what it loads, compiles or connects must not happen during a capture. The graph
    holds addresses only, so keep the tensors that `call` uses. Capturing from the default stream happens on
    `timing_stream`. Much cheaper than `torch.cuda.graph`, which empties torch's caches first. `like`: a living graph
    whose memory this one shares; their replays must not overlap.
    """
    if num_calls < 1:
        raise ConfigError(f"a graph needs 1 or more calls, got {num_calls}.")
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = timing_stream(torch.device("cuda", torch.cuda.current_device()))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        # thread_local: NCCL's own threads look at events meanwhile, which must not end the capture.
        graph.capture_begin(None if like is None else like.pool(), capture_error_mode="thread_local")
        try:
            for _ in range(num_calls):
                call()
        except BaseException:
            with suppress(RuntimeError):  # the first error is the one to show
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


def time_replays(
    graph: torch.cuda.CUDAGraph,
    num_calls: int,
    replays: int,
    prepare: Work | None = None,
    align: Work | None = None,
) -> list[float]:
    """Microseconds per call, one number per replay, on the current stream; every rank makes the same call.

    Each timed replay follows one that is not timed: in it the ranks wait for each other, so that they enter the timed
    one together, which the host launches while the GPU is still busy. `prepare` enqueues what must come before either,
    such as writing the inputs anew. `align` runs once per sample before both: a barrier over the ranks where
    they may be so far apart that a rank should not wait on its GPU.
    """
    samples_us = []
    for _ in range(replays):
        if align is not None:
            align()
        _run(prepare)
        graph.replay()
        _run(prepare)
        start, end = _event(), _event()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples_us.append(start.elapsed_time(end) * US_PER_MS / num_calls)
    return samples_us


def slowest_rank(samples_by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Of each sample the rank that took longest."""
    return [max(ranks) for ranks in zip(*samples_by_rank, strict=True)]


def summarise(samples_us: Sequence[float]) -> Spread:
    """Median and interquartile range of two or more samples, none left out."""
    lower_us, median_us, upper_us = statistics.quantiles(samples_us, n=4)
    iqr_us = upper_us - lower_us
    num_late = sum(sample_us > _LATE_FACTOR * median_us for sample_us in samples_us)
    remark = ""
    if iqr_us > _WIDE_IQR * median_us or num_late > _LATE_SHARE * len(samples_us):
        remark = (
            f"wide spread: IQR {iqr_us:.2f} us around {median_us:.2f}, {num_late} of {len(samples_us)} samples more "
            f"than twice the median, the worst {max(samples_us):.1f}"
        )
    return Spread(round(median_us, 3), round(iqr_us, 3), remark)


def num_safe_calls(dtype: torch.dtype, world_size: int, *, largest_input: float = 8.0) -> int:
    """How many dependent all-reduces in place stay finite, from inputs of at most `largest_input` in magnitude.

    Two ranks: 124 calls in bfloat16 and float32, 12 in float16; eight ranks: 41 and 4.
    """
    limit, largest_sum = torch.finfo(dtype).max, largest_input * world_size
    if largest_sum > limit:
        raise ConfigError(f"a sum of {world_size} inputs of {largest_input} must be finite, which {dtype} cannot hold.")
    if world_size == 1:
        return 1_000_000  # Arbitrary: nothing grows.
    num_calls = 1
    while largest_sum * world_size <= limit:
        largest_sum *= world_size
        num_calls += 1
    return num_calls


def chain_factor(num_calls: int, world_size: int) -> float:
    """What `num_calls` dependent all-reduces make of the first sum, once every rank holds it.

    Exact to the bit where the world size is a power of two: multiplying by it rounds nothing.
    """
    return float(world_size) ** (num_calls - 1)


def _run(work: Work | None) -> None:
    if work is not None:
        work()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
