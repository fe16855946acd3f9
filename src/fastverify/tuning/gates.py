"""Correctness gates: what a trial must pass before its speed counts. In order: the collective's sums, the first
divergence of greedy outputs beyond the baseline's own noise, the acceptance length, degenerate output.

Bit-equal output cannot be demanded (kernels of different row counts round differently), so the measure is the baseline
repeated. A divergence at a tie of the two best logits would be harmless; where logits are not reported the answer is
"could not tell", which a guarded experiment does not pass. Source: docs/cost-model.md, section on gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.cycle_cost import decode_rate
from fastverify.diagnosis.degenerate import DEGENERATE_BIGRAM_RATIO, bigram_ratio_of
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.experiments import Risk
from fastverify.tuning.interval import Interval
from fastverify.tuning.outcome import Outcome

Answer = Literal["passed", "failed", "could not tell"]
# Arbitrary: real corruption reaches most prompts within a few tokens, a tie reaches one prompt in thousands of tokens.
MAX_DIVERGED_SHARE = 0.5
# Arbitrary, between the 2 to 4 % of a calm machine and the 20 % of short loads over shm (docs/lab-notes.md).
USUAL_LAUNCH_NOISE = 0.1
# Source: noise of a decode measurement is 1.5 to 4 % (field reports); corruption costs far more than that.
ACCEPT_LENGTH_TOLERANCE = 0.03
# Arbitrary: a loop of two tokens over 64 tokens has a ratio of 0.03, prose and code are above 0.5.
MIN_BIGRAM_SHARE_OF_BASELINE = 0.5


class GateResult(BaseModel):
    """One gate's answer and the numbers it rests on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: Literal["collective", "outputs", "acceptance", "degenerate"]
    answer: Answer
    detail: str


FAILURES: dict[str, Outcome] = {
    "collective": "wrong_output",
    "outputs": "wrong_output",
    "acceptance": "fallen_acceptance",
    "degenerate": "wrong_output",
}


class SelfNoise(BaseModel):
    """What differs when the baseline is launched again: the yardstick of every comparison."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tok_s: float
    """Relative difference of the decode rate, at least the floor."""
    accept_length: float
    """Absolute difference."""
    diverged_share: float
    """Share of outputs that differ."""


# Arbitrary: fewer rates than this say nothing about their spread.
MIN_RATES = 3
# Source: standard error of a median of normal values, 1.253 s / sqrt(n), with s = 1.483 median absolute deviations.
MEDIAN_ERROR = 1.253 * 1.483
# Source: differences below 2 % are not ranked without more repeats (field reports, section 4).
NOISE_FLOOR = 0.02


def self_noise(first: ServerMeasurement, second: ServerMeasurement) -> SelfNoise:
    """Noise of two launches with the same settings, over the arms that both served."""
    arms = [arm for arm in first.arms if arm in second.arms]
    rates = [abs(decode_rate(first.arms[arm]) / decode_rate(second.arms[arm]) - 1.0) for arm in arms]
    lengths = [abs(first.arms[arm].accept_length - second.arms[arm].accept_length) for arm in arms]
    return SelfNoise(
        tok_s=max(NOISE_FLOOR, *rates),
        accept_length=max(lengths),
        diverged_share=max(diverged_share(first.arms[arm], second.arms[arm]) or 0.0 for arm in arms),
    )


def tok_s_noise(noise: SelfNoise, *, of_baseline: bool) -> float:
    """From launch to launch: as measured for the baseline's settings, elsewhere no more than is usual.

    Ranks that sleep in gloo are far noisier than ranks that do not; the confirmation has the last word.
    """
    return noise.tok_s if of_baseline else min(noise.tok_s, USUAL_LAUNCH_NOISE)


def launch_noise(measurement: ServerMeasurement) -> float:
    """Relative standard error of the plain arm's median rate within one launch: how restless the machine was.

    Plain requests all do the same work per token; speculative ones differ by how well they are drafted.
    """
    rates = measurement.arms["plain"].tok_s_samples
    if len(rates) < MIN_RATES:
        return 0.0
    middle = median(rates)
    deviation = median(abs(rate - middle) for rate in rates)
    return MEDIAN_ERROR * deviation / middle / math.sqrt(len(rates))


def check_collective(backend: str, table: AllReduceTable) -> GateResult:
    """The benchmark compared this backend's sums with float32 at every size."""
    wrong = table.wrong_sizes(backend)
    if wrong:
        sizes = ", ".join(map(str, wrong))
        return GateResult(gate="collective", answer="failed", detail=f"{backend} gives wrong sums at {sizes} bytes")
    if not table.checked(backend):
        return GateResult(gate="collective", answer="could not tell", detail=f"no benchmark row of {backend}")
    return GateResult(gate="collective", answer="passed", detail=f"{backend} gives right sums at every measured size")


def check_outputs(
    candidate: ServerMeasurement, baseline: ServerMeasurement, noise: SelfNoise, risk: Risk
) -> GateResult:
    """Greedy outputs of each arm against the same arm of the baseline."""
    details, answers = [], []
    for arm, measured in candidate.arms.items():
        # A server without a drafter, or without plain decoding, is held against what the baseline has.
        reference = baseline.arms.get(arm) or next(iter(baseline.arms.values()))
        answer, detail = _compare(measured, reference, noise)
        answers.append(answer)
        details.append(f"{arm}: {detail}")
    answer = _worst(answers)
    if answer == "could not tell" and risk != "safe":
        answer = "failed"
        details.append(f"a {risk} experiment must show that outputs stay the same")
    return GateResult(gate="outputs", answer=answer, detail="; ".join(details))


def check_acceptance(candidate: ServerMeasurement, expected: Interval | None, noise: SelfNoise) -> GateResult:
    """Acceptance length not below what the same drafts must give; a fall is a sign of corruption."""
    arm = candidate.arms.get("speculative")
    if arm is None:
        return GateResult(gate="acceptance", answer="passed", detail="no drafts in these settings")
    if expected is None:
        return GateResult(
            gate="acceptance",
            answer="could not tell",
            detail=f"acceptance length {arm.accept_length:.2f}; other drafts than before, nothing to hold it against",
        )
    tolerance = max(ACCEPT_LENGTH_TOLERANCE * expected.mid, 3.0 * noise.accept_length)
    floor = expected.low - tolerance
    detail = f"acceptance length {arm.accept_length:.2f}, expected {expected.mid:.2f}, at least {floor:.2f}"
    return GateResult(gate="acceptance", answer="failed" if arm.accept_length < floor else "passed", detail=detail)


def check_degenerate(candidate: ServerMeasurement, baseline: ServerMeasurement) -> GateResult:
    """Outputs must not fall into loops, which flatter every acceptance length."""
    ratio, before = bigram_ratio_of(candidate), bigram_ratio_of(baseline)
    if ratio is None or before is None:
        return GateResult(gate="degenerate", answer="could not tell", detail="the server reports no token ids")
    detail = f"{ratio:.2f} of the bigrams are distinct, {before:.2f} in the baseline"
    if ratio < MIN_BIGRAM_SHARE_OF_BASELINE * before:
        return GateResult(gate="degenerate", answer="failed", detail=detail)
    if before < DEGENERATE_BIGRAM_RATIO:
        return GateResult(
            gate="degenerate", answer="could not tell", detail=f"{detail}: the baseline itself repeats its own words"
        )
    return GateResult(gate="degenerate", answer="passed", detail=detail)


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """First position at which two outputs differ; None where the shorter one is a prefix of the longer."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def diverged_share(a: ArmMeasurement, b: ArmMeasurement) -> float | None:
    """Share of the common prompts whose outputs differ; None without token ids."""
    positions = _divergences(a, b)
    return sum(position is not None for position in positions) / len(positions) if positions else None


def failed_gate(results: Sequence[GateResult]) -> GateResult | None:
    """The first gate that was not passed; "could not tell" passes, and stays in the record."""
    return next((result for result in results if result.answer == "failed"), None)


def _compare(measured: ArmMeasurement, reference: ArmMeasurement, noise: SelfNoise) -> tuple[Answer, str]:
    unstable = set(measured.unstable_prompt_ids) - set(reference.unstable_prompt_ids)
    if unstable and noise.diverged_share == 0:
        return "failed", f"answers to {', '.join(sorted(unstable))} change from repeat to repeat of one launch"
    positions = _divergences(measured, reference)
    if not positions:
        return "could not tell", "no token ids to compare"
    diverged = sorted(position for position in positions if position is not None)
    if not diverged:
        return "passed", f"{len(positions)} of {len(positions)} outputs are the same"
    share = len(diverged) / len(positions)
    detail = f"{len(diverged)} of {len(positions)} outputs differ, first at token {diverged[0]}"
    if share <= noise.diverged_share:
        return "passed", f"{detail}; no more than when the baseline is repeated"
    if share - noise.diverged_share >= MAX_DIVERGED_SHARE:
        return "failed", detail
    return "could not tell", f"{detail}; without logits a tie cannot be told from an error"


def _divergences(a: ArmMeasurement, b: ArmMeasurement) -> list[int | None]:
    common = [key for key, ids in a.output_token_ids.items() if ids and b.output_token_ids.get(key)]
    return [first_divergence(a.output_token_ids[key], b.output_token_ids[key]) for key in common]


def _worst(answers: Sequence[Answer]) -> Answer:
    order: tuple[Answer, ...] = ("failed", "could not tell", "passed")
    return min(answers, key=order.index, default="could not tell")
