"""Torch profiler of one rank: started and stopped between steps, one compressed Chrome trace per rank.

Phases appear as spans `fastverify.verify`, `.draft`, `.extend`, `.plain`, `.accept` and `.prefill`.
Knows nothing of who asked.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fastverify.engine.phase_clock import PhaseClock
from fastverify.errors import ConfigError


class RankProfiler:
    """At most one running profile."""

    def __init__(self, rank: int, clock: PhaseClock) -> None:
        self._rank = rank
        self._clock = clock
        self._profile: torch.profiler.profile | None = None

    def start(self) -> None:
        """Begin recording; a running profile is thrown away."""
        if self._profile is not None:
            self._profile.stop()
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._profile.start()
        self._clock.set_profiling(True)

    def stop(self, folder: str) -> str | None:
        """End recording and write `rank-<n>.trace.json.gz`; its path, or None when nothing was recording.

        Raises: ConfigError where it cannot be written; the recording is lost then.
        """
        if self._profile is None:
            return None
        profile, self._profile = self._profile, None
        self._clock.set_profiling(False)
        profile.stop()
        path = Path(folder) / f"rank-{self._rank}.trace.json.gz"
        try:
            profile.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"a profile needs a folder that every rank can write to, but {path} cannot be written: {error}. "
                "Give another folder or make room, and record again."
            ) from error
        return str(path)
