"""Draws a running campaign on stderr: one line per finished trial, one bar with the time left for the running one."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fastverify.tuning.outcome import MEASURED, Outcome

_MARKS = {True: "[green]done[/]   ", False: "[red]failed[/] "}


class TuningProgress:
    """Implements the tuner's progress protocol with rich; on a terminal the bar moves, in a log only lines appear."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("[cyan]running[/] {task.description}"), BarColumn(20), TextColumn("{task.fields[left]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task: TaskID | None = None
        self._start_s = 0.0
        self._expected_s: float | None = None

    def trial_started(self, purpose: str, title: str, expected_s: float | None) -> None:
        """Show the bar of this trial."""
        self._start_s, self._expected_s = time.monotonic(), expected_s
        self._task = self._bar.add_task(title, total=None, left=_left(expected_s))

    def sample_taken(self, done: int, planned: int) -> None:
        """Move the bar."""
        if self._task is None:
            return
        left_s = (self._expected_s or 0.0) - (time.monotonic() - self._start_s)
        left = _left(left_s) if self._expected_s else ""
        self._bar.update(self._task, completed=done, total=planned, left=left)

    def trial_finished(self, title: str, outcome: Outcome, detail: str) -> None:
        """Replace the bar by a line."""
        self._remove_bar()
        reason = f": {detail}" if detail else ""
        self._console.print(_MARKS[outcome in MEASURED], end="")
        self._console.print(f"{title} [{outcome}]{reason}", markup=False)

    def skipped(self, title: str, reason: str) -> None:
        """One quiet line."""
        self._console.print("skipped ", style="dim", end="")
        self._console.print(f"{title}: {reason}", style="dim", markup=False)

    def note(self, text: str) -> None:
        """One line that stands out."""
        self._console.print(f"==> {text}", style="bold", markup=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_bar()
        self._bar.stop()

    def _remove_bar(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


def _left(seconds: float | None) -> str:
    return f"about {max(seconds, 0):.0f} s left" if seconds is not None else ""
