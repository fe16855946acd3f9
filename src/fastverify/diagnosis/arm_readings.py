"""What the numbers of each reported arm say by arithmetic alone: cycle, plain step, speedup, break-even, rows.

Identities, at batch b with rates over the whole batch: cycle_ms = accept_length x b / tok_s, plain_ms = b / tok_s,
speedup = ratio of the rates, break-even acceptance length = cycle_ms / plain_ms. An acceptance length that was not
given follows from per-position rates, from the rate of a fixed number of drafts, or from ITL over TPOT.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastverify.diagnosis.cycle_cost import CycleCost, cost_from_tok_s
from fastverify.diagnosis.reported import ArmFacts, ReportedFacts
from fastverify.diagnosis.verdict import Verdict, judge
from fastverify.errors import ConfigError
from fastverify.units import MS_PER_S

# What an arm was run with; two arms with the same values are the same experiment.
ARM_SETTINGS = (
    "method",
    "shape",
    "draft_model",
    "num_draft_steps",
    "top_k",
    "num_verify_tokens",
    "batch",
    "context",
    "tp",
    "ep",
    "workload",
    "all_reduce_backend",
)
_COPIED = ("rates", *ARM_SETTINGS)
_PHASES = ("draft", "extend", "accept", "host")
# Rounded numbers of a report may miss each other by this much.
_ROUNDING = 1.02


@dataclass(frozen=True)
class ArmReading:
    """One arm with everything that it inherits from the top of the report."""

    name: str
    facts: ArmFacts

    @property
    def batch(self) -> int:
        """Requests that decode together; 1 where nobody said otherwise."""
        return self.facts.batch or 1

    @property
    def plain_tok_s(self) -> float | None:
        """Plain decode rate of one request."""
        return self._one_request(self.facts.plain_tok_s)

    @property
    def speculative_tok_s(self) -> float | None:
        """Speculative decode rate of one request."""
        told = self._one_request(self.facts.speculative_tok_s)
        if told is None and self.facts.tpot_ms and self.facts.method not in (None, "none"):
            return MS_PER_S / self.facts.tpot_ms
        return told

    @property
    def speedup(self) -> float | None:
        """Speculative over plain rate."""
        if self.plain_tok_s is None or self.speculative_tok_s is None:
            return None
        return self.speculative_tok_s / self.plain_tok_s

    @cached_property
    def accept_length(self) -> float | None:
        """Tokens per verify pass, as told or as it follows from other numbers."""
        facts = self.facts
        if facts.accept_length is not None:
            return facts.accept_length
        if facts.accept_rate_per_position:
            return 1.0 + sum(facts.accept_rate_per_position)
        if facts.accept_rate is not None and self.rows:
            return 1.0 + facts.accept_rate * (self.rows - 1)
        if facts.itl_ms and facts.tpot_ms and facts.itl_ms >= facts.tpot_ms:
            return facts.itl_ms / facts.tpot_ms
        return None

    @property
    def rows(self) -> int | None:
        """Rows per request of a verify pass, the current token included."""
        facts = self.facts
        if facts.num_verify_tokens is not None:
            return facts.num_verify_tokens
        if facts.accept_rate_per_position:
            return len(facts.accept_rate_per_position) + 1
        is_chain = facts.shape == "chain" or facts.top_k == 1 or (facts.shape is None and facts.top_k is None)
        return facts.num_draft_steps + 1 if facts.num_draft_steps and is_chain else None

    @property
    def is_tree(self) -> bool | None:
        """Whether drafts branch; None where nobody said."""
        if self.facts.shape is not None:
            return self.facts.shape == "tree"
        return None if self.facts.top_k is None else self.facts.top_k > 1

    @property
    def plain_ms(self) -> float | None:
        """One plain step."""
        return None if self.plain_tok_s is None else MS_PER_S / self.plain_tok_s

    @property
    def cycle_ms(self) -> float | None:
        """One cycle of draft, verify and the rest."""
        if self.accept_length is not None and self.speculative_tok_s is not None:
            return self.accept_length * MS_PER_S / self.speculative_tok_s
        return self.facts.itl_ms if self.facts.method not in (None, "none") else None

    @property
    def break_even_accept_length(self) -> float | None:
        """Acceptance length at which both arms are equally fast."""
        if self.cycle_ms is None or self.plain_ms is None:
            return None
        return self.cycle_ms / self.plain_ms

    @cached_property
    def plain_cost(self) -> CycleCost | None:
        """Cost of a plain step with the phases that were told."""
        if self.plain_tok_s is None:
            return None
        phases = {}
        if self.facts.plain_all_reduce_ms is not None:
            phases["plain_all_reduce"] = self.facts.plain_all_reduce_ms
        return cost_from_tok_s("plain", self.plain_tok_s, phases_ms=phases, batch=self.batch)

    @cached_property
    def speculative_cost(self) -> CycleCost | None:
        """Cost of a cycle with the phases that were told; what they lack is the gap."""
        if self.speculative_tok_s is None or self.accept_length is None:
            return None
        phases = self._phases_ms()
        self._check(phases)
        cost = cost_from_tok_s(
            "speculative",
            self.speculative_tok_s,
            accept_length=self.accept_length,
            phases_ms=phases,
            batch=self.batch,
        )
        return _name_the_rest(cost)

    @cached_property
    def verdict(self) -> Verdict | None:
        """The whole verdict, where both costs are known."""
        if self.plain_cost is None or self.speculative_cost is None:
            return None
        count = self.facts.all_reduces_per_verify
        return judge(self.plain_cost, self.speculative_cost, all_reduces_per_verify=float(count) if count else None)

    def _one_request(self, tok_s: float | None) -> float | None:
        if tok_s is None or self.facts.rates == "per_request":
            return tok_s
        return tok_s / self.batch

    def _phases_ms(self) -> dict[str, float]:
        facts = self.facts
        told = {name: getattr(facts, f"{name}_ms") for name in _PHASES}
        phases = {name: float(ms) for name, ms in told.items() if ms is not None}
        compute_ms = facts.verify_compute_ms
        if compute_ms is None and facts.verify_ms is not None and facts.verify_all_reduce_ms is not None:
            compute_ms = max(facts.verify_ms - facts.verify_all_reduce_ms, 0.0)
        all_reduce_ms = facts.verify_all_reduce_ms
        if all_reduce_ms is None and facts.verify_ms is not None and compute_ms is not None:
            all_reduce_ms = max(facts.verify_ms - compute_ms, 0.0)
        if compute_ms is None and all_reduce_ms is None and facts.verify_ms is not None:
            phases["verify"] = facts.verify_ms
        phases |= {"verify_compute": compute_ms} if compute_ms is not None else {}
        phases |= {"verify_all_reduce": all_reduce_ms} if all_reduce_ms is not None else {}
        return phases

    def _check(self, phases: dict[str, float]) -> None:
        cycle_ms = self.cycle_ms
        if cycle_ms is not None and sum(phases.values()) > cycle_ms * _ROUNDING:
            raise ConfigError(
                f"the phases of a cycle fit into it, got {sum(phases.values()):.2f} ms of phases in a cycle of "
                f"{cycle_ms:.2f} ms = {self.accept_length} x 1000 / {self.speculative_tok_s} ({self.name}). "
                "Check the acceptance length (bonus token included) and whether tok/s count the whole batch (`rates`)."
            )


def read_arms(facts: ReportedFacts) -> tuple[ArmReading, ...]:
    """The arms of a report: the top where it has a speculative rate of its own, then its `arms`, each completed.

    Beside a top with its own rate, an arm takes over settings, and the plain rate where batch, ranks and context agree;
    what was measured of the top's drafts is not its.
    """
    top = {name: getattr(facts, name) for name in ArmFacts.model_fields}
    is_top_measured = facts.speculative_tok_s is not None
    told_arms: list[tuple[ArmFacts, ArmFacts]] = []
    if is_top_measured or not facts.arms:
        told_arms.append((facts, ArmFacts(**top)))
    for arm in facts.arms:
        told = {name: value for name in arm.model_fields_set if (value := getattr(arm, name)) is not None}
        shared = _settings_of(top, told) if is_top_measured else top
        told_arms.append((arm, ArmFacts(**{**shared, **told})))
    readings: list[ArmReading] = []
    for index, (own, completed) in enumerate(told_arms):
        name = _name(own, index)
        if any(reading.name == name for reading in readings):
            name = f"{name} ({index + 1})"
        readings.append(ArmReading(name=name, facts=completed))
    return tuple(readings)


def _settings_of(top: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """What an arm beside a measured top takes over from it."""
    kept = {name: value for name, value in top.items() if name in _COPIED}
    if all(told.get(name, top[name]) == top[name] for name in ("batch", "tp", "context")):
        kept["plain_tok_s"] = top["plain_tok_s"]
    return kept


def _name(arm: ArmFacts, index: int) -> str:
    parts = [part for part in (arm.method, arm.shape, arm.all_reduce_backend) if part]
    return arm.label or " ".join(parts) or f"arm {index + 1}"


def _name_the_rest(cost: CycleCost) -> CycleCost:
    """With the verify pass known and the draft not, what is left is outside the verify pass, not unexplained."""
    if cost.verify_ms is None or "draft" in cost.phases_ms or "gap" not in cost.phases_ms:
        return cost
    phases = {("outside_verify" if name == "gap" else name): ms for name, ms in cost.phases_ms.items()}
    return cost.model_copy(update={"phases_ms": phases})
