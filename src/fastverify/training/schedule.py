"""A learning rate that follows the clock: a run of N minutes always ends with a finished schedule.

Elapsed time survives a restart through the checkpoint, so a resumed run continues the same curve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastverify.errors import ConfigError


@dataclass(frozen=True)
class ClockSchedule:
    """Linear warm-up, then a cosine down to `final_share` of the peak, over `total_s` seconds of training."""

    total_s: float
    warm_up_share: float = 0.03
    final_share: float = 0.02

    def __post_init__(self) -> None:
        if not self.total_s > 0:
            raise ConfigError(f"training needs a time above 0 seconds, got {self.total_s}. Set --minutes.")

    def rate_share(self, elapsed_s: float) -> float:
        """Learning rate at `elapsed_s`, as a share of the peak."""
        progress = min(elapsed_s / self.total_s, 1.0)
        if progress < self.warm_up_share:
            # The first step already moves: a rate of 0 would waste it.
            return max(progress / self.warm_up_share, 0.01)
        cosine = 0.5 * (1 + math.cos(math.pi * (progress - self.warm_up_share) / (1 - self.warm_up_share)))
        return self.final_share + (1 - self.final_share) * cosine


class Stopwatch:
    """Seconds of training so far: those of earlier runs, and those since `start` outside of `pause`."""

    def __init__(self, earlier_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._earlier_s, self._now = earlier_s, now
        self._started: float | None = None

    def start(self) -> None:
        """Begin or go on counting."""
        self._started = self._now()

    def pause(self) -> None:
        """Stop counting, for evaluation."""
        self._earlier_s = self.elapsed_s
        self._started = None

    @property
    def elapsed_s(self) -> float:
        """Training seconds up to now."""
        return self._earlier_s + (0.0 if self._started is None else self._now() - self._started)
