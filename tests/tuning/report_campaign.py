"""A whole campaign for the report's tests: the real tuner over the fake server, which behaves like machine.py.

The tree breaks its outputs and the n-gram drafter crashes, so that the report has failures to show.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastverify.servers.server import Prompt
from fastverify.tuning.knobs import Knobs
from fastverify.tuning.trial import TuneOptions
from fastverify.tuning.tuner import Tuner
from tests.servers.fake_server import FakeBehaviour, FakeServer
from tests.tuning.machine import BASELINE, Machine

PROMPTS = tuple(Prompt(f"code-{i:02d}", f"def f_{i}(x):", "python code") for i in range(6))
OPTIONS = TuneOptions(num_tokens=64, num_prompts=6, repeats=1, confirm_repeats=1, confirm_pairs=1)
MACHINE = Machine()


def behaviour(settings: Mapping[str, Any]) -> FakeBehaviour:
    """The machine's answer as flags of the fake server."""
    resolved = {**settings, "num_proposed_drafts": Knobs.from_settings(settings).num_proposed_drafts}
    measured = MACHINE.measure(resolved)
    phases = {f"{phase}_ms": ms for arm in measured.arms.values() for phase, ms in arm.anatomy_ms.items()}
    survival = measured.arms["speculative"].correct_drafts_per_position if "speculative" in measured.arms else ()
    unreached = [0.0] * (resolved["num_proposed_drafts"] - len(survival))
    return FakeBehaviour(
        **phases,
        per_position=",".join(f"{share:.4f}" for share in [*survival, *unreached]),
        num_layers=MACHINE.num_layers,
        noise=0.01,
        wrong_output=settings.get("draft_shape") == "tree",
        crash_after=3 if settings.get("drafter") == "ngram" else -1,
    )


def rows() -> list[Any]:
    """The benchmark's rows, and one backend that did not run."""
    measured = list(MACHINE.table().rows)
    missing = {"backend": "nccl", "median_us": None, "iqr_us": None, "correct": None, "reason": "no NVIDIA GPU here"}
    return [*measured, *(measured[0].model_copy(update={**missing, "num_bytes": size}) for size in (1280, 8192))]


class MachineServer(FakeServer):
    """Goes by the name of the built-in server, so that a report spells its launch command."""

    name = "builtin"


def make_tuner(folder: Path, options: TuneOptions = OPTIONS) -> Tuner:
    """A tuner of this campaign; the caller closes it."""
    return Tuner(folder, MachineServer(behaviour), BASELINE, PROMPTS, rows(), options)
