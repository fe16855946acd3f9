"""The plan as `eagle-fast-verify.md`: verdict, anatomy as table and bar, findings, ranked experiments, assumptions.

Only words and layout; every number is the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.cycle_cost import PHASE_TITLES, CycleCost
from fastverify.tuning.interval import Interval
from fastverify.tuning.plan import Plan, PlannedExperiment

BAR_WIDTH = 60
# Two decimals of a millisecond are shown.
MIN_SHOWN_MS = 0.005
_LETTERS = {
    "draft": "D",
    "verify_compute": "C",
    "plain_compute": "C",
    "verify_all_reduce": "A",
    "plain_all_reduce": "A",
    "verify_gather": "G",
    "plain_gather": "G",
    "extend": "E",
    "accept": "S",
    "host": "H",
    "gap": ".",
}


def plan_markdown(plan: Plan) -> str:
    """The whole file."""
    sections = (_verdict, _anatomy, _findings, _experiments, _draft_lengths, _assumptions, _next)
    return "\n".join(line for section in sections for line in section(plan)) + "\n"


def text_bar(cost: CycleCost, width: int = BAR_WIDTH) -> str:
    """One character per 1/width of the cycle; a phase below half a character is not drawn."""
    bar, drawn_ms = "", 0.0
    for phase, ms in cost.phases_ms.items():
        drawn_ms += ms
        end = round(drawn_ms / cost.total_ms * width)
        bar += _LETTERS.get(phase, "?") * max(end - len(bar), 0)
    return bar


def _verdict(plan: Plan) -> Iterator[str]:
    verdict = plan.diagnosis.verdict
    yield "# Plan: fast verify"
    yield ""
    yield f"**{verdict.headline}**"
    yield ""
    yield "| | plain | speculative |"
    yield "|---|---:|---:|"
    yield f"| tok/s of one request | {verdict.plain_tok_s:.1f} | {verdict.speculative_tok_s:.1f} |"
    yield f"| ms per cycle | {verdict.plain_ms:.2f} | {verdict.cycle_ms:.2f} |"
    yield f"| tokens per cycle | 1 | {verdict.accept_length:.2f} |"
    yield f"| speedup | 1 | {verdict.speedup:.2f} |"
    yield f"| break-even acceptance length | | {verdict.break_even_accept_length:.2f} |"
    if verdict.all_reduces_per_verify is not None and verdict.all_reduce_us is not None:
        each = f"{verdict.all_reduces_per_verify:.0f} x {verdict.all_reduce_us:.0f} us"
        yield f"| all-reduces per verify pass | | {each} |"


def _anatomy(plan: Plan) -> Iterator[str]:
    yield ""
    yield "## Where a cycle goes"
    for cost in (plan.diagnosis.speculative, plan.diagnosis.plain):
        yield ""
        yield f"{cost.arm.capitalize()}, {cost.total_ms:.2f} ms:"
        yield ""
        yield f"    {text_bar(cost)}"
        yield ""
        yield "| phase | ms | share | in the bar |"
        yield "|---|---:|---:|:---:|"
        for phase, ms in cost.phases_ms.items():
            if ms < MIN_SHOWN_MS:
                continue
            letter = _LETTERS.get(phase, "?")
            yield f"| {PHASE_TITLES.get(phase, phase)} | {ms:.2f} | {cost.share(phase) * 100:.0f} % | `{letter}` |"


def _findings(plan: Plan) -> Iterator[str]:
    yield ""
    yield "## Findings"
    yield ""
    for finding in plan.diagnosis.findings:
        yield f"- **{finding.rule}** {finding.title} {finding.next}"
        yield (
            f"  Threshold {finding.threshold:.2f} ({finding.threshold_source}); confidence {finding.confidence}; "
            f"rests on {len(finding.evidence)} measured numbers."
        )
    if not plan.diagnosis.findings:
        yield "No rule fired."


def _experiments(plan: Plan) -> Iterator[str]:
    yield ""
    yield "## Experiments, ranked by predicted gain x probability / effort"
    yield ""
    yield "Each prediction is for the experiment alone, over this baseline. Gains do not add up: combinations are"
    yield "computed again after every trial. Both arms are predicted: a faster all-reduce helps plain decoding too."
    yield ""
    yield "| # | id | what | speculative | plain | acceptance length | risk | effort | probability |"
    yield "|---:|---|---|---:|---:|---:|---|---:|---:|"
    ranked = [entry for entry in plan.experiments if entry.refusal is None]
    for rank, entry in enumerate(ranked, start=1):
        yield _experiment_row(rank, entry)
    refused = [entry for entry in plan.experiments if entry.refusal is not None]
    if refused:
        yield ""
        yield "Not possible here:"
        yield ""
        for entry in refused:
            yield f"- `{entry.id}`: {entry.refusal}"
    yield ""
    yield "Why they may help:"
    yield ""
    for why in dict.fromkeys(entry.why for entry in ranked):
        ids = ", ".join(f"`{entry.id}`" for entry in ranked if entry.why == why)
        yield f"- {ids}: {why}"


def _experiment_row(rank: int, entry: PlannedExperiment) -> str:
    predicted = entry.predicted
    length = _range(predicted.accept_length) if predicted.accept_length else "none"
    return (
        f"| {rank} | `{entry.id}` | {entry.title} | {_range(predicted.speedup, 'x')} | "
        f"{_range(predicted.plain_speedup, 'x')} | {length} | {entry.risk} | {_minutes(entry.effort_min)} | "
        f"{entry.probability * 100:.0f} % |"
    )


def _draft_lengths(plan: Plan) -> Iterator[str]:
    if not plan.draft_lengths:
        return
    yield ""
    yield "## How many drafts"
    yield ""
    yield "From the per-position acceptance of this one run; longer chains than the measured one are extrapolated."
    yield ""
    yield "| drafts | acceptance length | tok/s | one more pays |"
    yield "|---:|---:|---:|:---:|"
    for point in plan.draft_lengths:
        pays = "yes" if point.one_more_pays else "no"
        yield f"| {point.num_drafts} | {_range(point.accept_length)} | {_range(point.tok_s, digits=0)} | {pays} |"


def _assumptions(plan: Plan) -> Iterator[str]:
    yield ""
    yield "## What was assumed, and what would settle it"
    yield ""
    for item in plan.assumptions:
        value = f"{item.value.mid:g} ({item.value.low:g} to {item.value.high:g})"
        yield f"- `{item.name}` = {value}: {item.text}. Source: {item.source}. Settled by {item.settles}."
    yield (
        f"- `noise` = {plan.noise * 100:.1f} %: two launches with the same settings differ by this much. "
        "Settled by repeating the baseline."
    )
    for unknown in _unknown(plan):
        yield f"- could not tell: {unknown}."


def _unknown(plan: Plan) -> list[str]:
    return [f"{item.name} of the {item.arm} arm" for item in plan.diagnosis.evidence if not item.is_known]


def _next(plan: Plan) -> Iterator[str]:
    yield ""
    yield "## Next"
    yield ""
    yield "`fastverify tune` tries these one by one on top of the best settings so far, keeps what wins, and confirms"
    yield "the winner against this baseline."


def _range(interval: Interval, unit: str = "", digits: int = 2) -> str:
    text = f"{interval.mid:.{digits}f}{unit}"
    if interval.low == interval.high:
        return text
    return f"{text} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"


def _minutes(minutes: float) -> str:
    return f"{minutes * 60:.0f} s" if minutes < 1 else f"{minutes:.0f} min"
