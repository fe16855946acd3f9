"""How long the next trial and the confirmation will take, and whether they still fit into the time budget.

A trial is a start, which costs what the last one cost, and a load, whose arms get faster or slower as predicted. The
confirmation needs at least one launch of each end. Decides nothing else.
"""

from __future__ import annotations

from fastverify.servers.measurement import ServerMeasurement
from fastverify.tuning.campaign import Trial
from fastverify.tuning.cost_model import Prediction
from fastverify.tuning.trial import TuneOptions


def trial_s(base: Trial, prediction: Prediction, min_load_s: float) -> float:
    """Expected time of a trial with these predicted settings, from the trial that it builds on."""
    assert base.result is not None, "a base was measured"
    assert base.measurement is not None, "a base was measured"
    load_s = base.measurement.elapsed_s
    shares = _arm_shares(base.measurement)
    speculative_s = shares["speculative"] / prediction.speedup.mid if prediction.speculative else 0.0
    relative = shares["plain"] / prediction.plain_speedup.mid + speculative_s
    return base.result.elapsed_s - load_s + max(load_s * relative, min_load_s)


def pair_s(baseline: Trial, best_s: float) -> float:
    """Expected time of one pair of the confirmation; its baseline serves one arm."""
    assert baseline.result is not None, "the baseline was measured"
    assert baseline.measurement is not None, "the baseline was measured"
    load_s = baseline.measurement.elapsed_s
    return baseline.result.elapsed_s - load_s + load_s * _arm_shares(baseline.measurement)["speculative"] + best_s


def shortage(options: TuneOptions, spent_s: float, next_s: float, reserved_s: float) -> str | None:
    """Why `next_s` more seconds do not fit; None where they do."""
    if options.budget_s is None or spent_s + next_s + reserved_s <= options.budget_s:
        return None
    kept = f" and the confirmation needs {reserved_s:.0f} s" if reserved_s else ""
    return f"time budget of {options.budget_s:.0f} s: {spent_s:.0f} s are spent, the next takes {next_s:.0f} s{kept}"


def _arm_shares(measurement: ServerMeasurement) -> dict[str, float]:
    """Part of the load's time that each arm took; an arm that was not served took none."""
    times_s = {
        arm: sum(sample.ttft_s + sample.decode_s for sample in one.samples) for arm, one in measurement.arms.items()
    }
    total_s = sum(times_s.values()) or 1.0
    return {arm: times_s.get(arm, 0.0) / total_s for arm in ("plain", "speculative")}
