"""A report's answer and plan on the terminal: verdict first, then waterfall, findings, experiments, unknowns."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from fastverify.cli.console import out
from fastverify.diagnosis.answer import Answer, ArmAnswer
from fastverify.diagnosis.cycle_cost import PHASE_TITLES
from fastverify.tuning.server_plan import ServerPlan
from fastverify.tuning.server_plan_text import effect_text, text_bar

_COLOURS = {"high": "red", "medium": "yellow", "low": "dim"}
# Longer lists are in the Markdown and the HTML page.
MAX_SHOWN = 6


def print_answer(answer: Answer, plan: ServerPlan | None) -> None:
    """Print everything; what is cut short says so."""
    out.print(f"[bold]{escape(answer.headline)}[/bold]")
    for arm in answer.arms:
        _print_waterfall(arm)
    if len(answer.arms) > 1:
        _print_arms(answer)
    _print_findings(answer)
    if answer.projection is not None:
        out.print(f"\n[bold]What if[/bold] {escape(answer.projection.text)}")
    if plan is not None:
        _print_plan(plan)
    for unknown in answer.unknown:
        out.print(f"[dim]could not tell {escape(unknown.name)}: needs {escape(unknown.needs)}[/dim]")


def _print_waterfall(arm: ArmAnswer) -> None:
    if not arm.phases_ms or arm.cycle_ms is None:
        return
    table = Table(title=f"Cycle of {arm.arm}, {arm.cycle_ms:.1f} ms", title_justify="left")
    for name in ("phase", "ms", "share", ""):
        table.add_column(name, justify="right" if name in ("ms", "share") else "left")
    for phase, ms in arm.phases_ms.items():
        share = f"{ms / arm.cycle_ms * 100:.0f} %"
        table.add_row(PHASE_TITLES.get(phase, phase), f"{ms:.2f}", share, text_bar(ms, arm.cycle_ms))
    out.print(table)


def _print_arms(answer: Answer) -> None:
    table = Table("arm", "plain tok/s", "speculative tok/s", "speedup", "accept length", "needs")
    for arm in answer.arms[:20]:
        numbers = (arm.plain_tok_s, arm.speculative_tok_s, arm.speedup, arm.accept_length, arm.break_even_accept_length)
        table.add_row(escape(arm.arm), *("?" if value is None else f"{value:.2f}" for value in numbers))
    out.print(table)
    if len(answer.arms) > 20:
        out.print(f"and {len(answer.arms) - 20} more arms, see --json", markup=False)


def _print_findings(answer: Answer) -> None:
    for finding in answer.findings:
        colour = _COLOURS[finding.confidence]
        out.print(f"[{colour}]{finding.rule}[/{colour}] ({finding.confidence}) {escape(finding.title)}")
        out.print(f"    next: {finding.next}", markup=False)
    if not answer.findings:
        out.print("No rule fired.")


def _print_plan(plan: ServerPlan) -> None:
    out.print(f"\n[bold]Experiments for {plan.server}[/bold], each alone; gains do not add up")
    settings = [entry for entry in plan.possible if entry.kind == "setting"]
    for rank, entry in enumerate(settings[:MAX_SHOWN], start=1):
        out.print(f"{rank}. {entry.title}", markup=False)
        effect = f"{effect_text(entry.predicted)}; " if entry.predicted is not None else ""
        out.print(f"   {effect}{entry.effort_min:.0f} min, {entry.risk}", markup=False)
    hidden = len(settings) - min(len(settings), MAX_SHOWN)
    refused = len(plan.experiments) - len(plan.possible)
    out.print(f"{hidden} more and {refused} that are not possible here: --markdown or -o DIR", markup=False)
