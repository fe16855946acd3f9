"""Predicts both arms for any combination of settings from one measurement of a server and the all-reduce table.

Every phase of the measured cycle is changed by what the new settings change and kept otherwise, and the phases are
added up again: savings are never summed. The measured settings therefore predict exactly what was measured.
Formulas, sources and a worked example: docs/cost-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastverify.diagnosis.cycle_cost import CycleCost, cost_of_arm
from fastverify.errors import ConfigError
from fastverify.servers.measurement import ArmMeasurement, ServerMeasurement
from fastverify.servers.server import Setting
from fastverify.tuning import priors
from fastverify.tuning.acceptance import Acceptance
from fastverify.tuning.all_reduce_table import AllReduceTable
from fastverify.tuning.collective_model import CollectiveModel
from fastverify.tuning.cycle_model import PlainCycle, SpeculativeCycle
from fastverify.tuning.interval import Interval
from fastverify.tuning.knobs import Knobs, chain_of, merge_settings
from fastverify.tuning.priors import Prior
from fastverify.units import MS_PER_S

# Source: launch-to-launch noise of a decode rate is 1.5 to 4 % (field reports, section 4).
DEFAULT_NOISE = 0.03


@dataclass(frozen=True)
class ArmPrediction:
    """One arm under the new settings; `phases_ms` sum to `cycle_ms`."""

    tok_s: Interval
    cycle_ms: Interval
    accept_length: Interval
    phases_ms: Mapping[str, Interval]


@dataclass(frozen=True)
class Prediction:
    """`speedup` is the decode rate that these settings give (speculative, or plain without a drafter) over the measured
    speculative rate; `plain_speedup` is plain over plain. `speculative` is None where the settings have no drafter."""

    settings: Mapping[str, Setting]
    plain: ArmPrediction
    speculative: ArmPrediction | None
    speedup: Interval
    plain_speedup: Interval
    priors: tuple[Prior, ...]

    @property
    def tok_s(self) -> Interval:
        """The rate that a client of these settings gets."""
        return (self.speculative or self.plain).tok_s


class CostModel:
    """`acceptance` may come from a longer chain than the measured one; `noise` is relative, of one decode rate."""

    def __init__(
        self,
        measurement: ServerMeasurement,
        table: AllReduceTable,
        *,
        noise: float = DEFAULT_NOISE,
        acceptance: Acceptance | None = None,
        norm_us: Prior = priors.NORM_US,
    ) -> None:
        if set(measurement.arms) < {"plain", "speculative"}:
            raise ConfigError(
                f"the cost model needs both arms of one server, got {', '.join(measurement.arms)}. Measure both."
            )
        self.settings = dict(measurement.settings)
        self.reference = Knobs.from_settings(self.settings)
        self.noise = noise
        plain_arm, arm = measurement.arms["plain"], measurement.arms["speculative"]
        self._plain_cost, self._cost = cost_of_arm(plain_arm), cost_of_arm(arm)
        collectives = CollectiveModel(table, self.reference, norm_us)
        self._plain = PlainCycle(
            self._plain_cost, plain_arm.collectives, collectives, level=_level(self._plain_cost, plain_arm)
        )
        self._speculative = SpeculativeCycle(
            self._cost,
            arm.collectives,
            collectives,
            self.reference,
            one_row_compute_ms=self._plain.compute_ms,
            level=_level(self._cost, arm),
        )
        self.acceptance = acceptance or Acceptance.measured(measurement)

    def predict(
        self, changes: Mapping[str, Setting], phase_factors: Mapping[str, Interval] | None = None
    ) -> Prediction:
        """Both arms after these changes to the measured settings, all at once.

        `phase_factors` scale phases by what no setting of the model stands for, such as expert parallelism.
        """
        factors = phase_factors or {}
        settings = merge_settings(self.settings, changes)
        knobs = Knobs.from_settings(settings)
        used: set[Prior] = set()
        plain = _arm(Interval.exact(1.0), _scaled(self._plain.phases_ms(knobs, used), factors))
        speculative = None
        if knobs.drafter != "none":
            accept_length = self.accept_length(knobs, used)
            speculative = _arm(accept_length, _scaled(self._speculative.phases_ms(knobs, used), factors))
        noise = Interval(low=1.0 - self.noise, mid=1.0, high=1.0 + self.noise)
        served = speculative or plain
        return Prediction(
            settings=settings,
            plain=plain,
            speculative=speculative,
            speedup=served.tok_s.scaled(1.0 / self._cost.tok_s) * noise,
            plain_speedup=plain.tok_s.scaled(1.0 / self._plain_cost.tok_s) * noise,
            priors=tuple(sorted(used, key=lambda prior: prior.name)),
        )

    def accept_length(self, knobs: Knobs, used: set[Prior]) -> Interval:
        """Acceptance length under new settings: measured, from per-position acceptance, or a prior."""
        reference = self.reference
        if _drafts_alike(knobs, reference):
            return Interval.exact(self._cost.accept_length)
        most = 1.0 + knobs.num_proposed_drafts
        if knobs.drafter != reference.drafter and not knobs.has_draft_model:
            used.add(priors.NGRAM_ACCEPT_LENGTH)
            return priors.NGRAM_ACCEPT_LENGTH.value.at_most(most)
        chain = self.acceptance.accept_length(knobs.num_draft_steps if knobs.has_draft_model else int(most) - 1)
        if knobs.is_chain == reference.is_chain:
            return chain.at_most(most)
        used.add(priors.TREE_GAIN)
        gain = priors.TREE_GAIN.value
        return (chain / gain if knobs.is_chain else chain * gain).at_most(most).at_least(1.0)

    def chain_changes(self, num_drafts: int) -> dict[str, Setting]:
        """Changes that make the drafts a chain of this length."""
        return chain_of(num_drafts)

    def one_more_draft_pays(self, num_drafts: int) -> bool:
        """Marginal rule: the next draft's tokens per added millisecond against tokens per millisecond so far."""
        now, more = (self.predict(self.chain_changes(k)).speculative for k in (num_drafts, num_drafts + 1))
        assert now is not None, "a chain has a speculative arm"
        assert more is not None, "a chain has a speculative arm"
        added_tokens = more.accept_length.mid - now.accept_length.mid
        added_ms = more.cycle_ms.mid - now.cycle_ms.mid
        return added_tokens * now.cycle_ms.mid > now.accept_length.mid * added_ms

    @property
    def plain_cost(self) -> CycleCost:
        """The measured plain arm."""
        return self._plain_cost

    @property
    def speculative_cost(self) -> CycleCost:
        """The measured speculative arm."""
        return self._cost


def _level(cost: CycleCost, arm: ArmMeasurement) -> float:
    """Phases of the cost over phases as counted: below 1 where they had to be fitted into what clients saw."""
    counted_ms = sum(arm.anatomy_ms.values())
    return sum(cost.phases_ms.get(phase, 0.0) for phase in arm.anatomy_ms) / counted_ms if counted_ms else 1.0


def _arm(accept_length: Interval, phases_ms: Mapping[str, Interval]) -> ArmPrediction:
    summed = sum(phases_ms.values(), Interval.exact(0.0))
    # Wide priors may overshoot zero at their low end; no cycle is shorter than a tenth of its middle.
    cycle_ms = summed.at_least(0.1 * summed.mid)
    return ArmPrediction(
        tok_s=(accept_length / cycle_ms).scaled(MS_PER_S),
        cycle_ms=cycle_ms,
        accept_length=accept_length,
        phases_ms=phases_ms,
    )


def _scaled(phases_ms: Mapping[str, Interval], factors: Mapping[str, Interval]) -> dict[str, Interval]:
    return {phase: ms * factors[phase] if phase in factors else ms for phase, ms in phases_ms.items()}


def _drafts_alike(knobs: Knobs, reference: Knobs) -> bool:
    """Whether the same tokens are drafted: only what moves or computes them may differ."""
    same_place = replace(
        knobs,
        comm_backend=reference.comm_backend,
        fuse_rmsnorm=reference.fuse_rmsnorm,
        draft_placement=reference.draft_placement,
        draft_token_exchange=reference.draft_token_exchange,
    )
    return same_place == reference
