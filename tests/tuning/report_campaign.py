"""Whole campaigns for the report's tests, through the real tuner and ledger; machine.py's formula stands for servers.

The tree breaks its outputs and the n-gram drafter crashes, so that a report has failures to show.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Prompt
from fastverify.tuning import tuner as tuner_module
from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.knobs import Knobs
from fastverify.tuning.progress import SilentProgress
from fastverify.tuning.trial import Run, TuneOptions
from tests.tuning.machine import BASELINE, Machine

PROMPTS = tuple(Prompt(f"code-{i:02d}", f"def f_{i}(x):", "python code") for i in range(6))
OPTIONS = TuneOptions(num_tokens=64, num_prompts=6, repeats=2, confirm_repeats=2, confirm_pairs=2)
CRASH = "the server ended with exit code 70. The end of its log: <rank 1> | torch.cuda.OutOfMemoryError"
# Goes by the name of the built-in server, so that a report spells its launch command.
SERVER: Any = SimpleNamespace(name="builtin", launch_spec=lambda settings: SimpleNamespace(argv=("none",)))


class StopAfter(SilentProgress):
    """Interrupts the campaign in the middle of its n-th experiment, as Ctrl-C does."""

    def __init__(self, num_experiments: int) -> None:
        self.left = num_experiments

    def trial_started(self, purpose: str, title: str, expected_s: float | None) -> None:
        self.left -= purpose == "experiment"

    def sample_taken(self, done: int, planned: int) -> None:
        if self.left < 0:
            raise KeyboardInterrupt


def run_campaign(
    folder: Path,
    machine: Machine | None = None,
    *,
    options: TuneOptions = OPTIONS,
    plan_only: bool = False,
    **tuner_options: Any,
) -> Path:
    """Run a campaign on a machine, to its end unless told otherwise; returns its folder."""
    runner = _runner(machine or Machine())
    with mock.patch.object(tuner_module, "run_server", runner):
        tuner = tuner_module.Tuner(folder, SERVER, BASELINE, PROMPTS, rows(), options, **tuner_options)
        try:
            tuner.measure_and_plan() if plan_only else tuner.run()
        finally:
            tuner.close()
    return folder


def rows() -> list[AllReduceRow]:
    """The benchmark's rows, and one backend that did not run."""
    measured = list(Machine().table().rows)
    missing = {"backend": "nccl", "median_us": None, "iqr_us": None, "correct": None, "reason": "no NVIDIA GPU here"}
    return [*measured, measured[0].model_copy(update=missing)]


def _runner(machine: Machine) -> Any:
    def run(server: Any, settings: Mapping[str, Any], *_: object, on_sample: Any, **__: object) -> Run:
        on_sample(1, 1)
        if settings["drafter"] == "ngram":
            return Run("crash", CRASH, None, 2.5)
        resolved = {**settings, "num_proposed_drafts": Knobs.from_settings(settings).num_proposed_drafts}
        return Run("ok", "", _with_outputs(machine.measure(resolved)), 2.5)

    return run


def _with_outputs(measurement: ServerMeasurement) -> ServerMeasurement:
    """Outputs of every prompt; a tree's speculative ones go wrong at the sixth token."""
    arms = {}
    for name, arm in measurement.arms.items():
        shift = 1 if name == "speculative" and measurement.settings["draft_shape"] == "tree" else 0
        outputs = {p.prompt_id: tuple(7 * t + (shift if t >= 5 else 0) for t in range(64)) for p in PROMPTS}
        arms[name] = arm.model_copy(update={"output_token_ids": outputs})
    return measurement.model_copy(update={"arms": arms})
