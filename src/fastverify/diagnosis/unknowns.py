"""What could not be told from a report, and what would tell it. The most useful first."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.report import Report

_ACCEPT_LENGTH_PLACES = 'SGLang: "accept len" of the decode lines; vLLM: 1 + accepted / drafts of the metrics page'


class Unknown(BaseModel):
    """A name of the facts file, what it would decide, and where to find it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    decides: str
    needs: str
    arm: str | None = None
    """The arm that lacks it; None for the main arm and the report as a whole."""


def unknowns_of(report: Report) -> tuple[Unknown, ...]:
    """Everything that is missing and would change what can be said."""
    parts = (_rates(report), _anatomy(report), _communication(report), _other_arms(report))
    return tuple(unknown for part in parts for unknown in part)


def _rates(report: Report) -> Iterator[Unknown]:
    arm = report.main_arm
    if arm.plain_tok_s is None:
        yield Unknown(
            name="plain_tok_s",
            decides="whether speculation pays at all",
            needs="the same server, model and load without speculation",
        )
    if arm.speculative_tok_s is None:
        yield Unknown(
            name="speculative_tok_s",
            decides="whether speculation pays at all",
            needs="the decode rate of the speculative server under the same load",
        )
    if arm.accept_length is None:
        yield Unknown(
            name="accept_length",
            decides="whether the drafts are poor or the cycle is long",
            needs=_ACCEPT_LENGTH_PLACES,
        )


def _anatomy(report: Report) -> Iterator[Unknown]:
    arm = report.main_arm
    cost = arm.speculative_cost
    if cost is not None and cost.verify_ms is None:
        yield Unknown(
            name="verify_ms",
            decides="whether the verify pass or what surrounds it is long",
            needs="SGLang: SGLANG_ENABLE_METRICS_DEVICE_TIMER=1; any server: a trace of a few cycles",
        )
    several = (arm.facts.tp or 1) > 1
    all_reduce_told = arm.facts.verify_all_reduce_ms is not None or (
        cost is not None and "verify_all_reduce" in cost.phases_ms
    )
    is_benched = report.facts.bench.world_size == arm.facts.tp
    if several and not all_reduce_told:
        yield Unknown(
            name="verify_all_reduce_ms",
            decides="how much of the verify pass is communication",
            needs="a trace of every rank"
            + ("" if is_benched else ", or an all-reduce benchmark at the message size of the verify pass"),
        )


def _communication(report: Report) -> Iterator[Unknown]:
    arm = report.main_arm
    if arm.facts.tp is None:
        yield Unknown(name="tp", decides="whether ranks talk at all", needs="the launch command")
        return
    if arm.facts.tp == 1:
        return
    if report.machine.fabric is None:
        yield Unknown(name="fabric", decides="what an all-reduce should take", needs="`nvidia-smi topo -m`")
    if report.model.hidden_size is None or report.model.num_layers is None:
        yield Unknown(
            name="model", decides="message sizes and the number of all-reduces", needs="the model's config.json"
        )
    if arm.rows is None and arm.speculative_tok_s is not None:
        yield Unknown(
            name="num_verify_tokens", decides="the message size of a verify pass", needs="the speculative settings"
        )


def _other_arms(report: Report) -> Iterator[Unknown]:
    for arm in report.arms:
        if arm is not report.main_arm and arm.speedup is not None and arm.accept_length is None:
            yield Unknown(
                name="accept_length",
                decides="whether its drafts are poor or its cycle is long",
                needs=_ACCEPT_LENGTH_PLACES,
                arm=arm.name,
            )
