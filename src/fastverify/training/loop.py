"""The training loop that target and head share: clock, schedule, checkpoints, loss log, resume.

What a step does, and what is validated, is the task's; see target.py and draft.py. The first step runs before the
clock starts, so that compilation does not eat training time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from fastverify.training.checkpoint import load_state, save_state
from fastverify.training.schedule import ClockSchedule, Stopwatch

LOG_FILE = "training_log.jsonl"
CHECKPOINT_EVERY_S = 60.0


class Task(Protocol):
    """What is trained."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters are trained."""
        ...

    optimizers: list[Optimizer]
    tokens_per_step: int

    def loss(self, step: int) -> torch.Tensor:
        """Loss of batch `step`, ready for backward."""
        ...

    def validate(self) -> dict[str, float]:
        """Measurements on held-out text, by name."""
        ...


@dataclass(frozen=True)
class LoopOptions:
    """How long, where, and how often. `settings` are compared when a run resumes."""

    folder: Path
    total_s: float
    peak_lr: float
    settings: dict[str, Any]
    clip_norm: float = 1.0
    log_every: int = 20
    validate_every_s: float = 60.0
    max_steps: int = 0  # 0: the clock alone stops the run


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for a progress bar."""

    step: int
    elapsed_s: float
    total_s: float
    loss: float
    tokens_per_s: float


class TrainingLoop:
    """One run of one task."""

    def __init__(
        self,
        task: Task,
        options: LoopOptions,
        report: Callable[[Progress], None] = lambda progress: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._options, self._report = task, options, report
        self._schedule = ClockSchedule(options.total_s)
        self.step = 0
        earlier_s = self._resume()
        self._stopwatch = Stopwatch(earlier_s, now)
        self._next_validation_s = self._next_checkpoint_s = earlier_s

    def run(self) -> None:
        """Train until the clock, or `max_steps`, ends the run; the last state is saved and validated."""
        if self.step == 0:
            self._train_step(elapsed_s=0.0)
        self._stopwatch.start()
        losses: list[torch.Tensor] = []
        window_start_s, window_start_step = self._stopwatch.elapsed_s, self.step
        while not self._is_finished():
            losses.append(self._train_step(self._stopwatch.elapsed_s))
            if self.step % self._options.log_every == 0:
                loss = float(torch.stack(losses).mean())  # waits for the device, so that the clock is honest
                elapsed_s = self._stopwatch.elapsed_s
                steps_per_s = (self.step - window_start_step) / max(elapsed_s - window_start_s, 1e-9)
                self._log_step(loss, elapsed_s, steps_per_s * self._task.tokens_per_step)
                losses, window_start_s, window_start_step = [], elapsed_s, self.step
                self._pause_for_validation_and_checkpoint()
                window_start_s = self._stopwatch.elapsed_s
        self._stopwatch.pause()
        self._validate()
        self._save()

    def _is_finished(self) -> bool:
        reached = 0 < self._options.max_steps <= self.step
        return reached or self._stopwatch.elapsed_s >= self._options.total_s

    def _train_step(self, elapsed_s: float) -> torch.Tensor:
        lr = self._options.peak_lr * self._schedule.rate_share(elapsed_s)
        loss = self._task.loss(self.step)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._task.model.parameters(), self._options.clip_norm)
        for optimizer in self._task.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach()

    def _log_step(self, loss: float, elapsed_s: float, tokens_per_s: float) -> None:
        lr = self._options.peak_lr * self._schedule.rate_share(elapsed_s)
        self._write_log(elapsed_s, loss=round(loss, 5), lr=lr, tokens_per_s=round(tokens_per_s))
        self._report(Progress(self.step, elapsed_s, self._options.total_s, loss, tokens_per_s))

    def _pause_for_validation_and_checkpoint(self) -> None:
        elapsed_s = self._stopwatch.elapsed_s
        self._stopwatch.pause()
        if elapsed_s >= self._next_validation_s:
            self._next_validation_s = elapsed_s + self._options.validate_every_s
            self._validate()
        if elapsed_s >= self._next_checkpoint_s:
            self._next_checkpoint_s = elapsed_s + CHECKPOINT_EVERY_S
            self._save()
        self._stopwatch.start()

    def _validate(self) -> None:
        with torch.no_grad():
            measured = self._task.validate()
        self._write_log(self._stopwatch.elapsed_s, **{name: round(value, 5) for name, value in measured.items()})

    def _write_log(self, elapsed_s: float, **values: float) -> None:
        tokens = self.step * self._task.tokens_per_step
        record = {"step": self.step, "elapsed_s": round(elapsed_s, 2), "tokens": tokens, **values}
        self._options.folder.mkdir(parents=True, exist_ok=True)
        with (self._options.folder / LOG_FILE).open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")

    def _save(self) -> None:
        state = {
            "step": self.step,
            "elapsed_s": self._stopwatch.elapsed_s,
            "settings": self._options.settings,
            "model": self._task.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._task.optimizers],
        }
        save_state(self._options.folder, state)

    def _resume(self) -> float:
        """Load the folder's state if there is one; seconds already trained."""
        state = load_state(self._options.folder, self._options.settings)
        if state is None:
            return 0.0
        self._task.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._task.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = int(state["step"])
        return float(state["elapsed_s"])
