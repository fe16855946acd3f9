"""From single rates to arms: plain and speculative rates of the same batch belong together, others do not.

A benchmark outranks what a log sampled at the same batch. Rates that cannot be paired are told, since a plain rate at
another batch is no baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastverify.diagnosis.evidence import Evidence
from fastverify.diagnosis.readers.reading import Rate

# Arbitrary: a sweep of four batches and a dozen drafting settings.
MAX_ARMS = 60


def arms_of(rates: Sequence[Rate]) -> tuple[list[dict[str, Any]], list[str]]:
    """Fields of each arm, the best supported first, and remarks about rates that have no counterpart."""
    plain = {batch: rate for (batch, _), rate in _best(rates, "plain").items()}
    speculative = list(_best(rates, "speculative").values())
    paired = [rate for rate in speculative if rate.batch in plain]
    others = [rate for rate in speculative if rate.batch not in plain]
    arms = [_arm(rate, plain.get(rate.batch)) for rate in (*_ordered(paired), *_ordered(others))]
    if not speculative:
        arms = [{"batch": rate.batch, "plain_tok_s": rate.total_tok_s} for rate in _ordered(plain.values())]
    return arms[:MAX_ARMS], _remarks(plain, others, paired)


def evidence_of_rates(rates: Iterable[Rate]) -> tuple[Evidence, ...]:
    """Every rate with its batch and acceptance length."""
    pieces = []
    for rate in rates:
        prefix = "" if rate.arm == "both" else f"{rate.arm}_"
        numbers: list[tuple[str, float, str]] = [
            (f"{prefix}tok_s", rate.total_tok_s, "tok/s"),
            ("batch", float(rate.batch), ""),
            *((name, value, "") for name, value in rate.settings.items()),
        ]
        if rate.accept_length is not None:
            numbers.append(("accept_length", rate.accept_length, "tokens"))
        pieces += [
            Evidence(name=name, value=value, unit=unit, arm=rate.arm, source=rate.source, line=rate.line)
            for name, value, unit in numbers
        ]
    return tuple(pieces)


def _best(rates: Sequence[Rate], arm: str) -> dict[tuple[int, tuple[tuple[str, float], ...]], Rate]:
    """One rate per batch and settings: a benchmark before a log, then the one of most samples, then the first."""
    best: dict[tuple[int, tuple[tuple[str, float], ...]], Rate] = {}
    for rate in rates:
        key = (rate.batch, tuple(sorted(rate.settings.items())))
        if rate.arm == arm and (key not in best or _rank(rate) > _rank(best[key])):
            best[key] = rate
    return best


def _rank(rate: Rate) -> tuple[bool, int]:
    return rate.is_benchmark, rate.num_samples


def _ordered(rates: Iterable[Rate]) -> list[Rate]:
    return sorted(rates, key=lambda rate: (-rate.num_samples, rate.batch))


def _arm(rate: Rate, plain: Rate | None) -> dict[str, Any]:
    arm: dict[str, Any] = {"batch": rate.batch, "speculative_tok_s": rate.total_tok_s, **rate.settings}
    if plain is not None:
        arm["plain_tok_s"] = plain.total_tok_s
    if rate.accept_length is not None:
        arm["accept_length"] = rate.accept_length
    if rate.accept_rate_per_position:
        arm["accept_rate_per_position"] = list(rate.accept_rate_per_position)
    return arm


def _remarks(plain: dict[int, Rate], others: list[Rate], paired: list[Rate]) -> list[str]:
    if not plain or not others or paired:
        return []
    batches = ", ".join(str(batch) for batch in sorted({rate.batch for rate in others}))
    return [
        f"plain decoding was measured at batch {', '.join(map(str, sorted(plain)))}, speculation at batch {batches}: "
        "rates of different batches are no pair. Measure both at one batch."
    ]
