"""The rules that look at a measured pair of arms: break-even, acceptance, communication, draft collectives, fixed cost.

A rule is a function from `Facts` to a finding or None; each says its threshold and where that comes from. Rule names
follow docs/cost-model.md. Rules for logs and environment dumps are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastverify.diagnosis.cycle_cost import CycleCost
from fastverify.diagnosis.degenerate import DEGENERATE_BIGRAM_RATIO
from fastverify.diagnosis.evidence import Evidence
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.verdict import EVEN_MARGIN, Verdict


@dataclass(frozen=True)
class Facts:
    """What the rules may look at. None or empty: could not tell."""

    verdict: Verdict
    plain: CycleCost
    speculative: CycleCost
    evidence: tuple[Evidence, ...] = ()
    correct_drafts_per_position: tuple[float, ...] = ()
    draft_collectives_per_cycle: float | None = None
    draft_collective_ms: float | None = None
    bigram_ratio: float | None = None
    """Share of distinct bigrams in the outputs."""

    def evidence_named(self, *names: str) -> tuple[Evidence, ...]:
        """The pieces of evidence with these names, in their order."""
        return tuple(item for item in self.evidence if item.name in names)


# Source: rule R-AL of the field reports' catalogue, which gives these numbers without a derivation.
MIN_ACCEPT_LENGTH = 1.2
MIN_FIRST_ACCEPTANCE = 0.4
# Arbitrary: at this share a free all-reduce would make the verify pass 1.4 times faster, more than any other knob.
MAX_ALL_REDUCE_SHARE = 0.3
# Arbitrary: 5 % of the cycle is about three times the usual noise of a decode rate (1.5 to 4 %).
MAX_DRAFT_COLLECTIVE_SHARE = 0.05
# Source: vllm#45258 measured 18 % of the step outside verify, Cohere 14 % (2026-04); twice the larger is abnormal.
MAX_OUTSIDE_VERIFY_SHARE = 0.36


def break_even(facts: Facts) -> Finding | None:
    """R-BE: the acceptance length does not pay for the length of the cycle."""
    verdict = facts.verdict
    if verdict.speedup >= 1 - EVEN_MARGIN:
        return None
    excess_ms = verdict.cycle_ms - verdict.accept_length * verdict.plain_ms
    return Finding(
        rule="R-BE",
        title=f"The cycle is {excess_ms:.1f} ms too long for an acceptance length of {verdict.accept_length:.2f}.",
        numbers={
            "accept_length": verdict.accept_length,
            "cycle_ms": verdict.cycle_ms,
            "plain_ms": verdict.plain_ms,
            "excess_ms": excess_ms,
        },
        threshold=verdict.break_even_accept_length,
        threshold_source="break-even acceptance length = cycle_ms / plain_ms",
        confidence="high",
        evidence=facts.evidence_named("tok_s", "accept_length"),
        next="Shorten the largest phase of the cycle; better drafts alone must reach the threshold.",
    )


def low_acceptance(facts: Facts) -> Finding | None:
    """R-AL: the drafts are rarely right."""
    first = facts.correct_drafts_per_position[0] if facts.correct_drafts_per_position else None
    accept_length = facts.verdict.accept_length
    numbers = {"accept_length": accept_length}
    if first is not None:
        numbers["first_draft_acceptance"] = first
    if accept_length <= MIN_ACCEPT_LENGTH:
        title, threshold = f"Acceptance length {accept_length:.2f}: a verify pass yields little more than plain.", 1.2
    elif first is not None and first < MIN_FIRST_ACCEPTANCE:
        title, threshold = f"Only {first * 100:.0f} % of the first drafts are right.", MIN_FIRST_ACCEPTANCE
    else:
        return None
    return Finding(
        rule="R-AL",
        title=title,
        numbers=numbers,
        threshold=threshold,
        threshold_source="rule R-AL of the field reports, without a derivation",
        confidence="high" if first is not None else "medium",
        evidence=facts.evidence_named("accept_length", "correct_drafts_per_position"),
        next="Check that the draft model belongs to this target and that prompts are real text; then train it further.",
    )


def all_reduce_share(facts: Facts) -> Finding | None:
    """R-ARSHARE: the verify pass is communication-bound."""
    verdict = facts.verdict
    if not verdict.verify_ms or verdict.verify_all_reduce_ms is None:
        return None
    share = verdict.verify_all_reduce_ms / verdict.verify_ms
    if share < MAX_ALL_REDUCE_SHARE:
        return None
    numbers = {"verify_ms": verdict.verify_ms, "verify_all_reduce_ms": verdict.verify_all_reduce_ms, "share": share}
    each = ""
    if verdict.all_reduce_us is not None and verdict.all_reduces_per_verify is not None:
        numbers |= {"all_reduces_per_verify": verdict.all_reduces_per_verify, "all_reduce_us": verdict.all_reduce_us}
        each = f": {verdict.all_reduces_per_verify:.0f} of {verdict.all_reduce_us:.0f} us each"
    return Finding(
        rule="R-ARSHARE",
        title=f"All-reduces are {share * 100:.0f} % of the verify pass{each}.",
        numbers=numbers,
        threshold=MAX_ALL_REDUCE_SHARE,
        threshold_source="arbitrary: a free all-reduce would make the verify pass 1.4 times faster",
        confidence="high" if each else "medium",
        evidence=facts.evidence_named("verify_all_reduce_ms", "verify_compute_ms", "all_reduces_per_verify"),
        next="Measure every all-reduce backend at these message sizes and try the fastest.",
    )


def draft_collectives(facts: Facts) -> Finding | None:
    """R-DRAFTTP: the draft model talks to the other ranks more than it is worth."""
    count, ms = facts.draft_collectives_per_cycle, facts.draft_collective_ms
    if not count or ms is None:
        return None
    share = ms / facts.verdict.cycle_ms
    if share < MAX_DRAFT_COLLECTIVE_SHARE:
        return None
    return Finding(
        rule="R-DRAFTTP",
        title=f"The draft model's {count:.0f} collectives take {ms:.1f} ms of every cycle ({share * 100:.0f} %).",
        numbers={"draft_collectives_per_cycle": count, "draft_collective_ms": ms, "share": share},
        threshold=MAX_DRAFT_COLLECTIVE_SHARE,
        threshold_source="arbitrary: about three times the noise of a decode rate",
        confidence="high",
        evidence=facts.evidence_named("draft_ms", "extend_ms"),
        next="Run the whole draft model on every rank, or exchange arg-max pairs instead of logits.",
    )


def fixed_cost(facts: Facts) -> Finding | None:
    """R-FIX: too much of the cycle is outside the verify pass."""
    verdict = facts.verdict
    if verdict.verify_ms is None:
        return None
    outside_ms = verdict.cycle_ms - verdict.verify_ms
    share = outside_ms / verdict.cycle_ms
    if share < MAX_OUTSIDE_VERIFY_SHARE:
        return None
    outside = {name: ms for name, ms in facts.speculative.phases_ms.items() if not name.startswith("verify_")}
    return Finding(
        rule="R-FIX",
        title=f"{outside_ms:.1f} ms of the cycle ({share * 100:.0f} %) is outside the verify pass.",
        numbers={"outside_verify_ms": outside_ms, "share": share} | {f"{name}_ms": ms for name, ms in outside.items()},
        threshold=MAX_OUTSIDE_VERIFY_SHARE,
        threshold_source="twice the 18 % of vllm#45258",
        confidence="medium",
        evidence=facts.evidence_named("draft_ms", "extend_ms", "accept_ms", "host_ms"),
        next="Fewer draft steps, a cheaper draft, or less host work per cycle; a trace shows the gaps.",
    )


def degenerate_output(facts: Facts) -> Finding | None:
    """R-BENCH: the outputs loop, so that the acceptance length says little about real text."""
    ratio = facts.bigram_ratio
    if ratio is None or ratio >= DEGENERATE_BIGRAM_RATIO:
        return None
    return Finding(
        rule="R-BENCH",
        title=f"The outputs repeat themselves: {ratio * 100:.0f} % of their bigrams are distinct.",
        numbers={"bigram_ratio": ratio, "accept_length": facts.verdict.accept_length},
        threshold=DEGENERATE_BIGRAM_RATIO,
        threshold_source="arbitrary: prose and code are above 0.5, a loop is near 0",
        confidence="high",
        evidence=facts.evidence_named("bigram_ratio", "accept_length"),
        next="Measure with prompts of the real workload; loops flatter every drafter.",
    )


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    break_even,
    low_acceptance,
    all_reduce_share,
    draft_collectives,
    fixed_cost,
    degenerate_output,
)


def apply_rules(facts: Facts) -> tuple[Finding, ...]:
    """Every finding that fires, in the order of RULES."""
    return tuple(finding for rule in RULES if (finding := rule(facts)) is not None)
