"""Cost of one decoding cycle, per arm, split into phases that add up to the whole.

The whole is what a client sees: cycle_ms = accept_length / tok_s. Phases are what the server counted. Time that the
client saw and no phase holds is the phase `gap`. Reads measurements; knows no rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict

from fastverify.errors import ConfigError
from fastverify.servers.measurement import ArmMeasurement
from fastverify.servers.server import Arm
from fastverify.units import MS_PER_S

GAP = "gap"
VERIFY_PHASES = ("verify", "verify_compute", "verify_all_reduce", "verify_gather")
PHASE_TITLES = {
    "draft": "draft",
    "verify": "verify pass, undivided",
    "verify_compute": "verify compute",
    "verify_all_reduce": "verify all-reduce",
    "verify_gather": "verify gather",
    "extend": "extend",
    "plain_compute": "plain compute",
    "plain_all_reduce": "plain all-reduce",
    "plain_gather": "plain gather",
    "accept": "accept and sample",
    "host": "host",
    "outside_verify": "outside the verify pass",
    GAP: "gap",
}


class CycleCost(BaseModel):
    """`phases_ms` sum to `total_ms`; `accept_length` is 1 for the plain arm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: Arm
    batch: int
    phases_ms: dict[str, float]
    total_ms: float
    accept_length: float

    @property
    def tok_s(self) -> float:
        """Tokens per second of one request."""
        return self.accept_length * MS_PER_S / self.total_ms

    @property
    def verify_ms(self) -> float | None:
        """The verify pass, collectives included; None where it was not measured."""
        known = [self.phases_ms[phase] for phase in VERIFY_PHASES if phase in self.phases_ms]
        return sum(known) if known else None

    def share(self, phase: str) -> float:
        """Part of the cycle that a phase takes, 0 to 1."""
        return self.phases_ms.get(phase, 0.0) / self.total_ms


def decode_rate(measurement: ArmMeasurement) -> float:
    """Tokens per second over all prompts together, with the median over the repeats of each prompt.

    Prompts differ in how well they are drafted, so a median over prompts would not be the mean acceptance length over
    the mean cycle. The arm's own median stands in where there are no samples.
    """
    seconds_per_token: dict[str, list[float]] = defaultdict(list)
    for sample in measurement.samples:
        if sample.tok_s > 0:
            seconds_per_token[sample.prompt_id].append(1.0 / sample.tok_s)
    if not seconds_per_token:
        return measurement.tok_s
    return 1.0 / fmean(median(times) for times in seconds_per_token.values())


def cost_of_arm(measurement: ArmMeasurement) -> CycleCost:
    """Cycle cost of a measured arm: its tok/s gives the whole, the server's counters give the phases."""
    accept_length = measurement.accept_length if measurement.arm == "speculative" else 1.0
    return cost_from_tok_s(
        measurement.arm,
        decode_rate(measurement),
        accept_length=accept_length,
        phases_ms=measurement.anatomy_ms,
        batch=measurement.batch,
    )


def cost_from_tok_s(
    arm: Arm, tok_s: float, *, accept_length: float = 1.0, phases_ms: Mapping[str, float] | None = None, batch: int = 1
) -> CycleCost:
    """Cycle cost from a decode rate, for a report that has two tok/s numbers and perhaps some phases.

    Phases that sum to more than the whole (timer noise) are scaled to it; what they lack becomes `gap`.
    """
    if not tok_s > 0 or accept_length < 1:
        raise ConfigError(
            f"tok/s must be above 0 and an acceptance length at least 1, got {tok_s} and {accept_length} ({arm} arm). "
            "The acceptance length counts the bonus token."
        )
    total_ms = accept_length * MS_PER_S / tok_s
    known_ms = dict(phases_ms or {})
    sum_ms = sum(known_ms.values())
    if sum_ms > total_ms:
        known_ms = {phase: ms * total_ms / sum_ms for phase, ms in known_ms.items()}
    else:
        known_ms[GAP] = total_ms - sum_ms
    return CycleCost(arm=arm, batch=batch, phases_ms=known_ms, total_ms=total_ms, accept_length=accept_length)
