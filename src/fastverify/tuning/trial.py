"""One trial: launch, engagement proof, gates, measurement of both arms. Ends in an outcome, never in an exception.

What goes into the ledger: `TrialStart` before the launch, `TrialResult` after it. Whether a trial is kept is decided by
the tuner, which knows what it was tried against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.cycle_cost import decode_rate
from fastverify.errors import FastverifyError, ServerCrashError, ServerHangError, ServerStartError
from fastverify.servers.measure import measure
from fastverify.servers.measurement import ServerMeasurement
from fastverify.servers.server import Arm, Prompt, Server, Setting
from fastverify.tuning.gates import GateResult
from fastverify.tuning.outcome import Outcome
from fastverify.tuning.plan import PredictedEffect

Purpose = Literal["baseline", "baseline_repeat", "experiment", "confirm_baseline", "confirm_winner"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TuneOptions(_Record):
    """How much is measured, and for how long. The defaults suit a machine that is left alone for a while."""

    num_tokens: int = 128
    num_prompts: int = 4
    repeats: int = 3
    confirm_repeats: int = 3
    min_load_s: float = 0.0
    """A load that is over sooner is repeated until it has lasted this long."""
    confirm_pairs: int = 2
    """Launches of baseline and winner in turn at the end; 0: none. A time budget may end it after one pair."""
    concurrency: int = 1
    stream: bool = False
    """Needed for servers that do not time their own tokens."""
    budget_s: float | None = None
    """Time for the whole campaign; what does not fit is skipped."""
    max_trials: int | None = None
    """Experiments that are tried at most."""
    min_request_timeout_s: float = 30.0


# Launches that only repeat what was measured before: the arm that clients get says it all, and plain decoding is slow.
SERVED_ARM_ONLY: tuple[Purpose, ...] = ("baseline_repeat", "confirm_baseline")


class TrialStart(_Record):
    """What will be launched, and what is expected of it."""

    purpose: Purpose
    title: str
    settings: dict[str, Setting]
    changes: dict[str, Setting]
    base_trial_id: int | None = None
    """The trial whose settings it builds on, and which its speedup is over."""
    predicted: PredictedEffect | None = None


class MeasuredEffect(_Record):
    """The measured counterpart of PredictedEffect."""

    speedup: float
    plain_speedup: float
    tok_s: float
    plain_tok_s: float
    accept_length: float | None


class EngagementProof(_Record):
    """`engaged` is None where the server does not show it."""

    engaged: bool | None
    text: str


class TrialResult(_Record):
    """How it ended. `measurement` holds every raw sample."""

    reason: str = ""
    """One line."""
    detail: str = ""
    """The whole error with the end of the server's log, for a trial that could not be measured."""
    kept: bool = False
    proof: EngagementProof | None = None
    gates: tuple[GateResult, ...] = ()
    measured: MeasuredEffect | None = None
    measurement: ServerMeasurement | None = None
    elapsed_s: float = 0.0
    log_path: str = ""


@dataclass(frozen=True)
class Run:
    """What launching and loading gave; `measurement` is None where it failed."""

    outcome: Outcome
    reason: str
    measurement: ServerMeasurement | None
    elapsed_s: float


def run_server(
    server: Server,
    settings: Mapping[str, Setting],
    prompts: Sequence[Prompt],
    options: TuneOptions,
    *,
    log_path: Path,
    repeats: int,
    request_timeout_s: float,
    served_arm_only: bool,
    on_sample: Callable[[int, int], None],
) -> Run:
    """Launch with these settings, measure every arm that it serves (or the one that clients get), stop it."""
    start_s = time.monotonic()

    def run(outcome: Outcome, reason: str, measurement: ServerMeasurement | None = None) -> Run:
        return Run(outcome, reason, measurement, time.monotonic() - start_s)

    try:
        spec = server.launch_spec(settings)
        with server.launch(spec, log_path) as running:
            arms = _served_arm(running.arms()) if served_arm_only else running.arms()
            planned = len(prompts) * repeats * len(arms)
            done = 0

            def count(_sample: object) -> None:
                nonlocal done
                done += 1
                on_sample(done, max(done, planned))

            measurement = measure(
                running,
                prompts,
                num_tokens=options.num_tokens,
                repeats=repeats,
                arms=arms,
                concurrency=options.concurrency,
                stream=options.stream,
                request_timeout_s=request_timeout_s,
                min_load_s=options.min_load_s,
                requested_settings=settings,
                on_sample=count,
            )
        return run("ok", "", measurement)
    except (ServerStartError, ServerCrashError) as error:
        return run("crash", str(error))
    except ServerHangError as error:
        return run("hang", str(error))
    except FastverifyError as error:
        return run("error", str(error))
    except (OSError, ValueError, LookupError) as error:
        return run("error", f"the server's answers could not be read: {error!r}")


def _served_arm(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    return ("speculative",) if "speculative" in arms else arms


def served_tok_s(measurement: ServerMeasurement) -> float:
    """The rate that a client of these settings gets: speculative, or plain where there is no drafter."""
    return decode_rate(measurement.arms.get("speculative") or measurement.arms["plain"])


def measured_effect(measurement: ServerMeasurement, base: ServerMeasurement) -> MeasuredEffect:
    """Rates of a trial over those of the settings it was tried on."""
    plain_tok_s, base_plain_tok_s = decode_rate(measurement.arms["plain"]), decode_rate(base.arms["plain"])
    speculative = measurement.arms.get("speculative")
    return MeasuredEffect(
        speedup=served_tok_s(measurement) / served_tok_s(base),
        plain_speedup=plain_tok_s / base_plain_tok_s,
        tok_s=served_tok_s(measurement),
        plain_tok_s=plain_tok_s,
        accept_length=speculative.accept_length if speculative else None,
    )
