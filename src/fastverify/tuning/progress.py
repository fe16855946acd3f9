"""What a campaign tells while it runs. The tuner calls; a command line draws. Nothing here prints."""

from __future__ import annotations

from typing import Protocol

from fastverify.tuning.outcome import Outcome


class Progress(Protocol):
    """Callbacks in the tuner's thread; they must return at once."""

    def trial_started(self, purpose: str, title: str, expected_s: float | None) -> None:
        """A trial begins; `expected_s` comes from the trials before, None for the first."""
        ...

    def sample_taken(self, done: int, planned: int) -> None:
        """One request of the running trial was answered."""
        ...

    def trial_finished(self, title: str, outcome: Outcome, detail: str) -> None:
        """The trial is in the ledger."""
        ...

    def skipped(self, title: str, reason: str) -> None:
        """An experiment will not be tried."""
        ...

    def note(self, text: str) -> None:
        """A decision that a reader may want to see, such as new best settings."""
        ...


class SilentProgress:
    """Says nothing."""

    def trial_started(self, purpose: str, title: str, expected_s: float | None) -> None:
        """Ignore."""

    def sample_taken(self, done: int, planned: int) -> None:
        """Ignore."""

    def trial_finished(self, title: str, outcome: Outcome, detail: str) -> None:
        """Ignore."""

    def skipped(self, title: str, reason: str) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""
