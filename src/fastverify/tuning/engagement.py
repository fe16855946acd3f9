"""Engagement proofs: what shows that a setting took effect, before its speed means anything.

A proof reads what the server resolved and what it counted. A knob that is silently ignored would otherwise read as "no
effect": vllm#31345 is one published case. "Could not tell" (None) is an answer where the server does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastverify.servers.measurement import CollectiveCost, ServerMeasurement
from fastverify.servers.server import Setting
from fastverify.tuning.collective_model import ARGMAX_PAIR_BYTES, FUSED_OP, GATHER_OP

# Room for a few rows of pairs; logits of the smallest vocabulary are far larger.
MAX_PAIR_MESSAGE_BYTES = 16 * ARGMAX_PAIR_BYTES


@dataclass(frozen=True)
class Proof:
    """`engaged` is None where the server does not show it."""

    engaged: bool | None
    text: str


Prover = Callable[[ServerMeasurement], Proof]


def prove(measurement: ServerMeasurement, changes: Mapping[str, Setting], counted: Prover | None) -> Proof:
    """Resolved settings first, then what was counted; the first contradiction decides."""
    resolved = resolved_settings(measurement, changes)
    if resolved.engaged is False or counted is None:
        return resolved
    count = counted(measurement)
    if count.engaged is None:
        return Proof(resolved.engaged, f"{resolved.text}; {count.text}")
    return Proof(count.engaged, f"{resolved.text}; {count.text}")


def resolved_settings(measurement: ServerMeasurement, changes: Mapping[str, Setting]) -> Proof:
    """Every changed setting is reported back as asked for; "auto" is whatever it became."""
    told = {name: measurement.settings[name] for name in changes if name in measurement.settings}
    wrong = [
        f"{name} is {told[name]!r}, asked for {changes[name]!r}" for name in told if not _same(name, told, changes)
    ]
    if wrong:
        return Proof(False, "the server resolved " + ", ".join(wrong))
    if not told:
        return Proof(None, "the server does not report these settings")
    return Proof(True, "resolved " + ", ".join(f"{name}={value}" for name, value in told.items()))


def fused_calls(measurement: ServerMeasurement) -> Proof:
    """Fused all-reduces were counted in a target pass."""
    costs = _collectives(measurement, ("plain", "verify"))
    if not costs:
        return Proof(None, "the server does not count its collectives")
    calls = sum(cost.per_pass for cost in costs if cost.op == FUSED_OP)
    return Proof(calls > 0, f"{calls:.0f} fused all-reduces per pair of passes")


def no_draft_collectives(measurement: ServerMeasurement) -> Proof:
    """A replicated draft model talks to nobody."""
    if not _collectives(measurement, ("verify",)):
        return Proof(None, "the server does not count its collectives")
    calls = sum(cost.per_pass for cost in _collectives(measurement, ("draft", "extend")))
    return Proof(calls == 0, f"{calls:.0f} draft collectives per cycle")


def small_draft_gathers(measurement: ServerMeasurement) -> Proof:
    """The draft's gathers carry pairs, not logits."""
    gathers = [cost for cost in _collectives(measurement, ("draft",)) if cost.op == GATHER_OP]
    if not gathers:
        return Proof(None, "no draft gather was counted")
    largest = max(cost.bytes_per_pass / cost.per_pass for cost in gathers)
    return Proof(largest <= MAX_PAIR_MESSAGE_BYTES, f"draft gathers of {largest:.0f} bytes")


def proposes(num_drafts: int) -> Prover:
    """Verify passes carried this many drafts on average; the last pass of a request may be cut."""

    def prover(measurement: ServerMeasurement) -> Proof:
        arm = measurement.arms.get("speculative")
        if arm is None or arm.num_proposed_drafts == 0:
            return Proof(None, "the server does not count proposed drafts")
        close = abs(arm.num_proposed_drafts - num_drafts) < 0.5
        return Proof(close, f"{arm.num_proposed_drafts:.2f} drafts per verify pass")

    return prover


def no_speculative_arm(measurement: ServerMeasurement) -> Proof:
    """Only plain decoding was served."""
    return Proof("speculative" not in measurement.arms, f"arms served: {', '.join(measurement.arms)}")


def _collectives(measurement: ServerMeasurement, phases: tuple[str, ...]) -> list[CollectiveCost]:
    return [cost for arm in measurement.arms.values() for cost in arm.collectives if cost.phase in phases]


def _same(name: str, told: Mapping[str, Setting], changes: Mapping[str, Setting]) -> bool:
    return changes[name] == "auto" or str(told[name]) == str(changes[name])
