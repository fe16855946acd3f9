"""A report's answer and plan in words: the summary of seven lines, and `eagle-fast-verify.md`.

Only words and layout; every number is the answer's or the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.answer import Answer, ArmAnswer
from fastverify.diagnosis.cycle_cost import PHASE_TITLES
from fastverify.tuning.interval import Interval
from fastverify.tuning.plan import PredictedEffect
from fastverify.tuning.server_plan import ServerExperiment, ServerPlan
from fastverify.units import format_bytes

BAR_WIDTH = 40


def summary_lines(answer: Answer, plan: ServerPlan | None) -> tuple[str, ...]:
    """Seven lines that can be pasted into an issue."""
    main = _main(answer)
    possible = plan.possible if plan is not None else ()
    tried = [entry for entry in possible if entry.kind == "setting"]
    return (
        answer.headline,
        f"Where it goes: {_phases(main)}.",
        f"Finding: {_finding(answer)}",
        f"First: {_experiment(tried, 0)}",
        f"Then: {_experiment(tried, 1)}",
        f"Together: {_together(plan)}",
        f"Could not tell: {_unknown(answer)}",
    )


def answer_markdown(answer: Answer, plan: ServerPlan | None) -> str:
    """The whole file."""
    lines = ["# Plan: fast verify", ""]
    lines += [f"{number}. {line}" for number, line in enumerate(summary_lines(answer, plan), start=1)]
    for section in (_arms, _waterfall, _findings, _projection):
        lines += section(answer)
    lines += _experiments(plan) if plan is not None else ["", "No plan: the report names no server with a catalogue."]
    lines += _unknowns(answer)
    return "\n".join(lines) + "\n"


def text_bar(ms: float, total_ms: float, width: int = BAR_WIDTH) -> str:
    """A bar of the share of a phase."""
    return "#" * round(ms / total_ms * width)


def effect_text(effect: PredictedEffect) -> str:
    """Both arms and their ratio after an experiment."""
    ratio = effect.tok_s.mid / effect.plain_tok_s.mid
    return (
        f"speculative {_range(effect.tok_s, 0)} tok/s, plain {_range(effect.plain_tok_s, 0)} tok/s, "
        f"speculation {ratio:.2f} of plain"
    )


def _main(answer: Answer) -> ArmAnswer:
    return next((arm for arm in answer.arms if arm.speedup is not None), answer.arms[0])


def _phases(arm: ArmAnswer) -> str:
    if not arm.phases_ms or arm.cycle_ms is None:
        return "could not be told: it needs verify_ms, or a trace"
    parts = sorted(arm.phases_ms.items(), key=lambda item: -item[1])
    text = ", ".join(f"{PHASE_TITLES.get(name, name)} {ms:.1f} ms" for name, ms in parts[:4] if ms > 0)
    each = f"; one all-reduce takes {arm.all_reduce_us:.0f} us" if arm.all_reduce_us is not None else ""
    return f"{text} of {arm.cycle_ms:.1f} ms{each}"


def _finding(answer: Answer) -> str:
    causes = [finding for finding in answer.findings if finding.rule != "R-BE"]
    if not causes:
        return "no cause could be named from this report."
    more = f" ({len(causes) - 1} more)" if len(causes) > 1 else ""
    return f"{causes[0].rule} {causes[0].title}{more}"


def _experiment(tried: list[ServerExperiment], index: int) -> str:
    if index >= len(tried):
        return "nothing else in the catalogue."
    entry = tried[index]
    effect = f" {effect_text(entry.predicted)};" if entry.predicted is not None else ""
    return f"{entry.title}:{effect} {entry.effort_min:.0f} min, {entry.risk}."


def _together(plan: ServerPlan | None) -> str:
    if plan is None or plan.together is None:
        return "no combination could be predicted from this report."
    return f"{' + '.join(plan.together.ids)}: {effect_text(plan.together.predicted)}. Gains do not add up."


def _unknown(answer: Answer) -> str:
    if not answer.unknown:
        return "nothing that would change this."
    first = answer.unknown[0]
    others = [name for name in dict.fromkeys(unknown.name for unknown in answer.unknown) if name != first.name]
    more = f"; {', '.join(others)}" if others else ""
    return f"{first.name}{_of(first.arm)} (from {first.needs}){more}."


def _arms(answer: Answer) -> list[str]:
    lines = [
        "",
        "## Arms",
        "",
        "| arm | plain tok/s | speculative tok/s | speedup | acceptance length | needs | cycle ms |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for arm in answer.arms:
        cells = (
            _number(arm.plain_tok_s, 1),
            _number(arm.speculative_tok_s, 1),
            _number(arm.speedup, 2),
            _number(arm.accept_length, 2),
            _number(arm.break_even_accept_length, 2),
            _number(arm.cycle_ms, 2),
        )
        lines.append(f"| {arm.arm} | " + " | ".join(cells) + " |")
    main = _main(answer)
    if main.plain_message_bytes is not None and main.verify_message_bytes is not None:
        sizes = f"{format_bytes(main.plain_message_bytes)} plain, {format_bytes(main.verify_message_bytes)} verify"
        lines += ["", f"One all-reduce of `{main.arm}`: {sizes}."]
    return lines


def _waterfall(answer: Answer) -> list[str]:
    main = _main(answer)
    if not main.phases_ms or main.cycle_ms is None:
        return []
    lines = ["", f"## Where a cycle of `{main.arm}` goes", "", "| phase | ms | share | |", "|---|---:|---:|---|"]
    for name, ms in main.phases_ms.items():
        share = ms / main.cycle_ms
        title = PHASE_TITLES.get(name, name)
        lines.append(f"| {title} | {ms:.2f} | {share * 100:.0f} % | `{text_bar(ms, main.cycle_ms)}` |")
    return lines


def _findings(answer: Answer) -> list[str]:
    lines = ["", "## Findings", ""]
    for finding in answer.findings:
        arms = f" ({', '.join(finding.arms)})" if finding.arms and len(answer.arms) > 1 else ""
        lines.append(f"- **{finding.rule}**, {finding.confidence} confidence{arms}: {finding.title} {finding.next}")
        lines.append(f"  Threshold {finding.threshold:g}: {finding.threshold_source}.{_places(finding.evidence)}")
    return lines if answer.findings else [*lines, "No rule fired."]


def _places(evidence: tuple[object, ...]) -> str:
    places = [f"{e.source}:{e.line}" for e in evidence if getattr(e, "line", None) is not None]  # type: ignore[attr-defined]
    return f" Rests on {', '.join(dict.fromkeys(places))}." if places else ""


def _projection(answer: Answer) -> list[str]:
    return ["", "## What if", "", answer.projection.text] if answer.projection is not None else []


def _experiments(plan: ServerPlan) -> list[str]:
    lines = [
        "",
        "## Experiments, ranked by predicted gain x probability / effort",
        "",
        "Each prediction is for the experiment alone. Gains do not add up: of one group only one can be on, and what",
        "carries the messages excludes every setting of what carried them before. Both arms are predicted, since a",
        "faster all-reduce helps plain decoding too: the column `over plain` is what counts.",
        "",
        "| # | id | what | group | speculative tok/s | plain tok/s | over plain | risk | effort | probability |",
        "|---:|---|---|---|---:|---:|---:|---|---:|---:|",
    ]
    settings = [entry for entry in plan.possible if entry.kind == "setting"]
    lines += [_row(rank, entry) for rank, entry in enumerate(settings, start=1)]
    for entry in settings:
        lines += ["", f"### `{entry.id}`", "", *_details(entry)]
    lines += ["", "Measurements that settle something:", ""]
    lines += [
        f"- `{e.id}`: {e.title}. {e.why} Shows: {e.engagement}." for e in plan.possible if e.kind == "measurement"
    ]
    refused = [entry for entry in plan.experiments if entry.refusal is not None]
    lines += (
        ["", "Not possible here:", ""] + [f"- `{e.id}` {e.title}: {e.refusal}." for e in refused] if refused else []
    )
    lines += ["", "## What was estimated and assumed", ""]
    lines += [f"- {text}" for text in plan.estimates]
    lines += [
        f"- `{a.name}` = {a.value.mid:g} ({a.value.low:g} to {a.value.high:g}): {a.text}. Source: {a.source}. "
        f"Settled by {a.settles}."
        for a in plan.assumptions
    ]
    return lines


def _row(rank: int, entry: ServerExperiment) -> str:
    effect = entry.predicted
    predicted = ("?", "?", "?")
    if effect is not None:
        over = effect.tok_s.mid / effect.plain_tok_s.mid
        predicted = (_range(effect.tok_s, 0), _range(effect.plain_tok_s, 0), f"{over:.2f}")
    return (
        f"| {rank} | `{entry.id}` | {entry.title} | {entry.exclusive_group or ''} | {' | '.join(predicted)} | "
        f"{entry.risk} | {entry.effort_min:.0f} min | {entry.probability * 100:.0f} % |"
    )


def _details(entry: ServerExperiment) -> Iterator[str]:
    yield entry.why
    changes = [f"`{name}={value}`" for name, value in entry.env.items()]
    changes += [
        f"`--{name}`" if v is True else f"no `--{name}`" if v is None else f"`--{name} {v}`"
        for name, v in entry.flags.items()
    ]
    changes += [f"`{name}: {value}` in `--speculative-config`" for name, value in entry.speculative_config.items()]
    yield f"- Changes: {', '.join(changes)}"
    yield f"- Took effect when: {entry.engagement}"
    if entry.conflicts:
        yield f"- Means nothing beside: {', '.join(f'`{name}`' for name in entry.conflicts)}"
    if entry.follows_from:
        yield f"- Follows from: {', '.join(entry.follows_from)}"
    for remark in entry.remarks:
        yield f"- Check first: {remark}"
    yield f"- Undo: {entry.undo}. Source: {entry.source}."


def _unknowns(answer: Answer) -> list[str]:
    lines = ["", "## Could not tell", ""]
    lines += [f"- `{u.name}`{_of(u.arm)}, which decides {u.decides}: {u.needs}." for u in answer.unknown]
    return lines if answer.unknown else [*lines, "Nothing that would change the verdict."]


def _of(arm: str | None) -> str:
    return f" of {arm}" if arm is not None else ""


def _number(value: float | None, digits: int) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def _range(interval: Interval, digits: int = 2) -> str:
    text = f"{interval.mid:.{digits}f}"
    if interval.low == interval.high:
        return text
    return f"{text} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"
