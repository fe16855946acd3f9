"""How many tokens a verify pass yields for any number of proposed drafts, from one measured run.

For a chain, draft i is right in a share p_i of the passes, and the acceptance length of a chain of k is 1 + p_1 + ... +
p_k: one run at the largest k gives every smaller one. Beyond it the last conditional acceptance is carried on.
Source: Leviathan et al., arXiv:2211.17192; docs/cost-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from fastverify.servers.measurement import ServerMeasurement
from fastverify.tuning.interval import Interval
from fastverify.tuning.knobs import Knobs

# Two standard errors: about 95 % of repeats.
NUM_STANDARD_ERRORS = 2.0
# Arbitrary: published heads lose a tenth to a fifth of their conditional acceptance per further position, rarely gain.
EXTRAPOLATION = (0.75, 0.95, 1.1)


@dataclass(frozen=True)
class Acceptance:
    """`survival[i]`: share of verify passes in which at least i + 1 drafts were right."""

    survival: tuple[float, ...]
    num_passes: int

    @classmethod
    def measured(cls, measurement: ServerMeasurement) -> Self:
        """Of the speculative arm, one entry per draft position; positions that were never right are counted as 0."""
        arm = measurement.arms["speculative"]
        num_unseen = Knobs.from_settings(measurement.settings).num_draft_steps - len(arm.correct_drafts_per_position)
        return cls((*arm.correct_drafts_per_position, *(0.0,) * num_unseen), arm.num_cycles)

    def accept_length(self, num_drafts: int) -> Interval:
        """Tokens per verify pass of a chain of `num_drafts`, bonus token included."""
        known = self.survival[:num_drafts]
        mid = 1.0 + sum(known)
        width = NUM_STANDARD_ERRORS * self._standard_error(known)
        low, high = mid - width, mid + width
        for survival in self._extrapolated(num_drafts - len(known)):
            low, mid, high = low + survival.low, mid + survival.mid, high + survival.high
        return Interval.around(mid, max(low, 1.0), min(high, 1.0 + num_drafts))

    def survival_at(self, position: int) -> Interval:
        """Share of passes in which draft `position` (from 1) is right; extrapolated beyond the measured ones."""
        if position <= len(self.survival):
            return Interval.exact(self.survival[position - 1])
        return self._extrapolated(position - len(self.survival))[-1]

    def _extrapolated(self, count: int) -> list[Interval]:
        if count <= 0:
            return []
        last = self.survival[-1] if self.survival else 1.0
        before = self.survival[-2] if len(self.survival) > 1 else 1.0
        conditional = last / before if before > 0 else 0.0
        ratios = [min(conditional * factor, 1.0) for factor in EXTRAPOLATION]
        return [
            Interval(low=last * ratios[0] ** step, mid=last * ratios[1] ** step, high=last * ratios[2] ** step)
            for step in range(1, count + 1)
        ]

    def _standard_error(self, survival: tuple[float, ...]) -> float:
        # With N right drafts per pass: E[N] = sum p_i and E[N^2] = sum (2i - 1) p_i.
        mean = sum(survival)
        mean_square = sum((2 * i + 1) * share for i, share in enumerate(survival))
        return math.sqrt(max(mean_square - mean * mean, 0.0) / max(self.num_passes, 1))


def longest_chain(measurements: Iterable[ServerMeasurement]) -> Acceptance | None:
    """Acceptance of the longest chain of the draft model among these; None where there is none."""
    chains = []
    for measurement in measurements:
        knobs = Knobs.from_settings(measurement.settings)
        if "speculative" in measurement.arms and knobs.has_draft_model and knobs.is_chain:
            chains.append(Acceptance.measured(measurement))
    return max(chains, key=lambda acceptance: len(acceptance.survival), default=None)
