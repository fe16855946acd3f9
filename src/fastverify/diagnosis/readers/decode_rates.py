"""From the rates that a log samples to one rate per arm and batch: only samples of a steady batch count.

A sample right after a batch changed holds idle time or a prefill, so it is left out wherever steady samples exist. The
median is a sample of the log itself, so that it has a line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from fastverify.diagnosis.readers.reading import Rate
from fastverify.servers.server import Arm


@dataclass(frozen=True)
class Sample:
    """One line of a log that gives a rate."""

    line: int
    arm: Arm
    batch: int
    total_tok_s: float
    is_steady: bool
    accept_length: float | None = None
    accept_rate_per_position: tuple[float, ...] = ()


def rates_of(samples: Iterable[Sample], source: str) -> list[Rate]:
    """One rate per arm and batch, the batch with most samples first."""
    groups: dict[tuple[Arm, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.batch > 0 and sample.total_tok_s > 0:
            groups[sample.arm, sample.batch].append(sample)
    rates = [_rate(group, source) for group in groups.values()]
    return sorted(rates, key=lambda rate: (-rate.num_samples, rate.batch))


def _rate(group: list[Sample], source: str) -> Rate:
    steady = [sample for sample in group if sample.is_steady] or group
    middle = median_low([sample.total_tok_s for sample in steady])
    chosen = next(sample for sample in steady if sample.total_tok_s == middle)
    lengths = [sample.accept_length for sample in steady if sample.accept_length is not None]
    return Rate(
        arm=chosen.arm,
        total_tok_s=middle,
        batch=chosen.batch,
        source=source,
        line=chosen.line,
        num_samples=len(steady),
        accept_length=median_low(lengths) if lengths else None,
        accept_rate_per_position=chosen.accept_rate_per_position,
    )
