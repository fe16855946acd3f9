"""The verdict: does speculation pay here, what would it need, and where does the cycle's time go.

Three identities tie its numbers: cycle_ms = accept_length / tok_s; break-even acceptance length = cycle_ms / plain_ms;
speedup = accept_length * plain_ms / cycle_ms. Sources: docs/cost-model.md.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.cycle_cost import PHASE_TITLES, CycleCost

# Arbitrary: a difference below half a percent rounds to "0 %" and reads as neither win nor loss.
EVEN_MARGIN = 0.005


class Verdict(BaseModel):
    """None where the number could not be told, such as a verify time without anatomy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plain_tok_s: float
    speculative_tok_s: float
    speedup: float
    accept_length: float
    break_even_accept_length: float
    cycle_ms: float
    plain_ms: float
    verify_ms: float | None
    verify_all_reduce_ms: float | None
    all_reduces_per_verify: float | None
    headline: str

    @property
    def all_reduce_us(self) -> float | None:
        """Mean time of one all-reduce of the verify pass."""
        if self.verify_all_reduce_ms is None or not self.all_reduces_per_verify:
            return None
        return self.verify_all_reduce_ms * 1000 / self.all_reduces_per_verify


def judge(plain: CycleCost, speculative: CycleCost, *, all_reduces_per_verify: float | None = None) -> Verdict:
    """Verdict over both arms of one server."""
    break_even = speculative.total_ms / plain.total_ms
    return Verdict(
        plain_tok_s=plain.tok_s,
        speculative_tok_s=speculative.tok_s,
        speedup=speculative.accept_length / break_even,
        accept_length=speculative.accept_length,
        break_even_accept_length=break_even,
        cycle_ms=speculative.total_ms,
        plain_ms=plain.total_ms,
        verify_ms=speculative.verify_ms,
        verify_all_reduce_ms=speculative.phases_ms.get("verify_all_reduce"),
        all_reduces_per_verify=all_reduces_per_verify,
        headline=_headline(plain, speculative),
    )


def _headline(plain: CycleCost, speculative: CycleCost) -> str:
    break_even = speculative.total_ms / plain.total_ms
    gain = speculative.accept_length / break_even - 1
    outcome = "breaks even" if abs(gain) < EVEN_MARGIN else f"{'wins' if gain > 0 else 'loses'} {abs(gain) * 100:.0f} %"
    head = f"Speculation {outcome}: acceptance length {speculative.accept_length:.2f}, needs {break_even:.2f}."
    return f"{head} {_largest_phase(speculative)}"


def _largest_phase(cost: CycleCost) -> str:
    phase, ms = max(cost.phases_ms.items(), key=lambda item: item[1])
    name = "all-reduce" if phase == "verify_all_reduce" else PHASE_TITLES.get(phase, phase)
    if phase == "gap":
        return f"{ms:.1f} ms of the {cost.total_ms:.1f} ms cycle is not accounted for."
    return f"{ms:.1f} ms of the {cost.total_ms:.1f} ms cycle is {name}."
