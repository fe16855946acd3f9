"""The phases of one cycle as functions of the settings: what each phase becomes when settings change.

A phase that no change touches keeps its measured time exactly. Compute and collectives of a phase are priced apart.
Rows: a verify pass has one row per candidate and one for the current token; a plain pass has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fastverify.diagnosis.cycle_cost import GAP, CycleCost
from fastverify.servers.measurement import CollectiveCost
from fastverify.tuning import priors
from fastverify.tuning.collective_model import (
    ARGMAX_PAIR_BYTES,
    DRAFT_FUSABLE_SHARE,
    TARGET_FUSABLE_SHARE,
    Calls,
    CollectiveModel,
    calls_of_phase,
    total_ms,
)
from fastverify.tuning.interval import ZERO, Interval, total
from fastverify.tuning.knobs import Knobs
from fastverify.tuning.priors import Prior
from fastverify.units import US_PER_MS


class PassModel:
    """One kind of target pass: `compute`, `all_reduce` and `gather` phases with a common prefix."""

    def __init__(self, cost: CycleCost, prefix: str, calls: tuple[Calls, ...], collectives: CollectiveModel) -> None:
        self._cost = cost
        self._prefix = prefix
        self._calls = calls
        self._collectives = collectives
        self.compute_ms = cost.phases_ms.get(f"{prefix}_compute", 0.0)

    def phases_ms(self, knobs: Knobs, used: set[Prior], *, size_factor: float = 1.0) -> dict[str, Interval]:
        """The three phases; `size_factor` is new rows over measured rows."""
        calls, num_moved_norms = self._collectives.with_fusion(self._calls, knobs, fusable_share=TARGET_FUSABLE_SHARE)
        norms_ms = ZERO
        if num_moved_norms:
            used.add(self._collectives.norm_us)
            norms_ms = self._collectives.norm_us.value.scaled(-num_moved_norms / US_PER_MS)
        phases = {
            "all_reduce": (
                [call for call in self._calls if not call.is_gather],
                [call for call in calls if not call.is_gather],
            ),
            "gather": ([call for call in self._calls if call.is_gather], [call for call in calls if call.is_gather]),
        }
        relief = self._collectives.compute_relief(knobs, used)
        compute = (Interval.exact(self.compute_ms) * relief + norms_ms).at_least(0.0)
        result = {f"{self._prefix}_compute": compute}
        for name, (old, new) in phases.items():
            measured_ms = self._cost.phases_ms.get(f"{self._prefix}_{name}", 0.0)
            priced, assumed = self._collectives.pass_ms(new, knobs, compute_ms=compute.mid, size_factor=size_factor)
            used |= assumed
            # The counters of collectives cover every batch, the anatomy only the main one: keep the anatomy's level.
            level = measured_ms / total_ms(old) if total_ms(old) else 0.0
            result[f"{self._prefix}_{name}"] = priced.scaled(level) if old else Interval.exact(measured_ms)
        return result


class PlainCycle:
    """One plain step."""

    def __init__(
        self, cost: CycleCost, costs: Iterable[CollectiveCost], collectives: CollectiveModel, *, level: float
    ) -> None:
        self._cost = cost
        self._pass = PassModel(cost, "plain", calls_of_phase(costs, "plain", level), collectives)

    @property
    def compute_ms(self) -> float:
        """Compute of one row; 0 where the server has no anatomy."""
        return self._pass.compute_ms

    def phases_ms(self, knobs: Knobs, used: set[Prior]) -> dict[str, Interval]:
        """Every phase; what is not the pass stays."""
        kept = {phase: Interval.exact(ms) for phase, ms in self._cost.phases_ms.items()}
        return _replace_known(kept, self._pass.phases_ms(knobs, used))


class SpeculativeCycle:
    """Draft, verify, extend and the rest."""

    def __init__(
        self,
        cost: CycleCost,
        costs: Iterable[CollectiveCost],
        collectives: CollectiveModel,
        reference: Knobs,
        *,
        one_row_compute_ms: float,
        level: float,
    ) -> None:
        """`level`: the cost's phases over the phases that the server counted."""
        costs = tuple(costs)
        self._cost = cost
        self._collectives = collectives
        self._reference = reference
        self._one_row_compute_ms = one_row_compute_ms
        self._verify = PassModel(cost, "verify", calls_of_phase(costs, "verify", level), collectives)
        self._draft_calls = calls_of_phase(costs, "draft", level)
        self._extend_calls = calls_of_phase(costs, "extend", level)
        self._extend_compute_ms = max(cost.phases_ms.get("extend", 0.0) - total_ms(self._extend_calls), 0.0)

    def phases_ms(self, knobs: Knobs, used: set[Prior]) -> dict[str, Interval]:
        """Every phase of the cycle under new settings."""
        phases = {phase: Interval.exact(ms) for phase, ms in self._cost.phases_ms.items()}
        phases = _replace_known(phases, self._verify_ms(knobs, used))
        phases |= {"draft": self._draft_ms(knobs, used), "extend": self._extend_ms(knobs, used)}
        tree_host_ms = self._tree_host_ms(knobs, used)
        if tree_host_ms != ZERO:
            phases["host"] = (phases.get("host", ZERO) + tree_host_ms).at_least(0.0)
        phases = {phase: ms for phase, ms in phases.items() if ms != ZERO or phase in self._cost.phases_ms}
        return phases | self._gap_ms(phases)

    def _gap_ms(self, phases: dict[str, Interval]) -> dict[str, Interval]:
        """Drafts beyond the last token are lost in proportion to the cycle; a client's own overhead would stay."""
        measured = self._cost.phases_ms.get(GAP, 0.0)
        old_ms = self._cost.total_ms - measured
        if not measured or old_ms <= 0:
            return {}
        new_ms = total(ms for phase, ms in phases.items() if phase != GAP).mid
        lost = measured * new_ms / old_ms
        return {GAP: Interval(low=min(lost, measured), mid=lost, high=max(lost, measured))}

    def _verify_ms(self, knobs: Knobs, used: set[Prior]) -> dict[str, Interval]:
        rows, new_rows = self._reference.num_verify_tokens, knobs.num_verify_tokens
        phases = self._verify.phases_ms(knobs, used, size_factor=new_rows / rows)
        if new_rows != rows and rows > 1:
            used.add(priors.ROW_SLOPE)
            slope_ms = max(self._verify.compute_ms - self._one_row_compute_ms, 0.0) / (rows - 1)
            relief = self._collectives.compute_relief(knobs, used).mid
            growth = priors.ROW_SLOPE.value.scaled(slope_ms * relief * (new_rows - rows))
            phases["verify_compute"] = (phases["verify_compute"] + growth).at_least(0.1 * self._verify.compute_ms)
        return phases

    def _draft_ms(self, knobs: Knobs, used: set[Prior]) -> Interval:
        measured = Interval.exact(self._cost.phases_ms.get("draft", 0.0))
        if _drafting_alike(knobs, self._reference):
            return measured
        if not knobs.has_draft_model:
            if knobs.drafter == self._reference.drafter:
                return measured
            used.add(priors.NGRAM_DRAFT_MS)
            return priors.NGRAM_DRAFT_MS.value
        compute, calls = self._draft_work(knobs.num_draft_steps, used)
        width_factor = 1.0
        if knobs.is_chain != self._reference.is_chain:
            used.add(priors.TREE_WIDTH)
            width = priors.TREE_WIDTH.value
            compute = compute / width if knobs.is_chain else compute * width
            width_factor = knobs.top_k / self._reference.top_k
        return self._draft_model_ms(compute, calls, knobs, used, size_factor=width_factor)

    def _draft_work(self, new_steps: int, used: set[Prior]) -> tuple[Interval, tuple[Calls, ...]]:
        """Compute and collectives of the draft phase for another number of steps.

        The extend pass gives the first level its hidden state: k steps are k token choices and k - 1 layer passes.
        """
        steps = self._reference.num_draft_steps
        if not self._reference.has_draft_model:
            used.add(priors.UNKNOWN_DRAFT)
            return priors.UNKNOWN_DRAFT.value.scaled(new_steps * (self._cost.verify_ms or self._cost.total_ms)), ()
        compute_ms = max(self._cost.phases_ms.get("draft", 0.0) - total_ms(self._draft_calls), 0.0)
        if new_steps == steps:
            return Interval.exact(compute_ms), self._draft_calls
        choices = [replace(call, count=call.count * new_steps / steps) for call in self._draft_calls if call.is_gather]
        if steps == 1:
            used.add(priors.EXTEND_TO_DRAFT)
            layers = [
                replace(call, count=call.count * (new_steps - 1)) for call in self._extend_calls if not call.is_gather
            ]
            added = priors.EXTEND_TO_DRAFT.value.scaled(self._extend_compute_ms * (new_steps - 1))
            return Interval.exact(compute_ms) + added, (*choices, *layers)
        factor = (new_steps - 1) / (steps - 1)
        layers = [replace(call, count=call.count * factor) for call in self._draft_calls if not call.is_gather]
        used.add(priors.CHOICE_SHARE)
        share = priors.CHOICE_SHARE.value
        grown = [
            compute_ms * (new_steps - 1 + part) / (steps - 1 + part) for part in (share.low, share.mid, share.high)
        ]
        return Interval(low=min(grown), mid=grown[1], high=max(grown)), (*choices, *(c for c in layers if c.count > 0))

    def _draft_model_ms(
        self, compute: Interval, calls: Iterable[Calls], knobs: Knobs, used: set[Prior], *, size_factor: float = 1.0
    ) -> Interval:
        """Compute and collectives of the draft model where the new settings put it."""
        reference = self._reference
        compute = compute * self._collectives.compute_relief(knobs, used)
        if knobs.draft_placement != reference.draft_placement:
            growth = priors.replicated_factor(reference.tp_size)
            used.add(growth)
            compute = compute * growth.value if knobs.draft_placement == "replicated" else compute / growth.value
        if knobs.draft_placement == "replicated":
            return compute
        fused, num_moved_norms = self._collectives.with_fusion(
            _exchanged(calls, knobs, reference), knobs, fusable_share=DRAFT_FUSABLE_SHARE
        )
        if num_moved_norms:
            used.add(self._collectives.norm_us)
            compute = (compute - self._collectives.norm_us.value.scaled(num_moved_norms / US_PER_MS)).at_least(0.0)
        ms, assumed = self._collectives.pass_ms(fused, knobs, compute_ms=compute.mid, size_factor=size_factor)
        used |= assumed
        return compute + ms

    def _extend_ms(self, knobs: Knobs, used: set[Prior]) -> Interval:
        measured = Interval.exact(self._cost.phases_ms.get("extend", 0.0))
        if _drafting_alike(replace(knobs, num_draft_steps=self._reference.num_draft_steps), self._reference):
            return measured
        if not knobs.has_draft_model:
            return ZERO
        if not self._reference.has_draft_model:
            return self._draft_work(1, used)[0]
        compute = Interval.exact(self._extend_compute_ms)
        return self._draft_model_ms(compute, self._extend_calls, knobs, used)

    def _tree_host_ms(self, knobs: Knobs, used: set[Prior]) -> Interval:
        if knobs.is_chain == self._reference.is_chain:
            return ZERO
        used.add(priors.TREE_HOST_MS)
        return priors.TREE_HOST_MS.value.scaled(-1.0 if knobs.is_chain else 1.0)


def _exchanged(calls: Iterable[Calls], knobs: Knobs, reference: Knobs) -> tuple[Calls, ...]:
    """Draft gathers after a change from whole logits to one pair per rank; the way back is not predicted."""
    if knobs.draft_token_exchange == reference.draft_token_exchange or knobs.draft_token_exchange != "local_argmax":
        return tuple(calls)
    return tuple(replace(call, new_bytes=ARGMAX_PAIR_BYTES) if call.is_gather else call for call in calls)


def _replace_known(phases: dict[str, Interval], new: dict[str, Interval]) -> dict[str, Interval]:
    """New values for the phases that were measured; a server without anatomy keeps its gap."""
    return phases | {phase: ms for phase, ms in new.items() if phase in phases}


def _drafting_alike(knobs: Knobs, reference: Knobs) -> bool:
    """Whether a draft pass and the number of passes are untouched."""
    return replace(knobs, num_proposed_drafts=reference.num_proposed_drafts) == reference
