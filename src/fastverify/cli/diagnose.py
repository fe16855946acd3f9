"""`fastverify diagnose`: a verdict and the next experiment from what a person can paste. Needs no GPU and no server.

The document of `--json` is the answer (diagnosis/answer.py) with two more members: `inputs` and `plan`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fastverify.cli.console import err, print_json, print_text
from fastverify.cli.diagnosis_tables import print_answer
from fastverify.cli.exit_codes import ExitCode
from fastverify.diagnosis.answer import Answer, answer_report
from fastverify.diagnosis.collect import Collected, collect
from fastverify.diagnosis.facts_file import facts_schema
from fastverify.diagnosis.report import Report
from fastverify.errors import ConfigError
from fastverify.tuning.server_plan import ServerPlan, plan_for_server
from fastverify.tuning.server_plan_files import write_plan
from fastverify.tuning.server_plan_page import answer_page
from fastverify.tuning.server_plan_text import answer_markdown


class Threshold(StrEnum):
    """Lowest confidence of a finding that makes the exit code 1."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NEVER = "never"


_AT_LEAST = {
    Threshold.HIGH: ("high",),
    Threshold.MEDIUM: ("high", "medium"),
    Threshold.LOW: ("high", "medium", "low"),
    Threshold.NEVER: (),
}


def diagnose(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders, or - for standard input: logs, commands, dumps, numbers (facts file)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the plan, its ledger and a serve.sh per experiment.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for an issue.")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="Print one HTML page without network.")] = False,
    fail_on: Annotated[
        Threshold, typer.Option(help="Exit code 1 when a finding has at least this confidence.")
    ] = Threshold.HIGH,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a facts file and exit.")] = False,
) -> None:
    """Say why speculative decoding is slow, from logs, launch commands, dumps or a few numbers, and what to try."""
    if schema:
        print_json(facts_schema())
        return
    if sum((as_json, as_markdown, as_html)) > 1:
        raise ConfigError("one of --json, --markdown and --html at a time, got several. Leave out all but one.")
    if not inputs:
        raise ConfigError("a diagnosis needs at least one file, folder or -, got none. `--schema` shows a facts file.")
    collected = collect(inputs)
    answer = answer_report(collected.facts, collected.evidence)
    plan = plan_for_server(Report(collected.facts, collected.evidence), answer)
    if as_json:
        print_json(document_of(answer, plan, collected))
    elif as_markdown:
        print_text(answer_markdown(answer, plan))
    elif as_html:
        print_text(answer_page(answer, plan))
    else:
        print_answer(answer, plan)
    _print_inputs(collected)
    if out is not None:
        written = write_plan(out, collected.facts, answer, plan)
        err.print(f"wrote {len(written)} files to {out}", markup=False)
    if any(finding.confidence in _AT_LEAST[fail_on] for finding in answer.findings):
        raise typer.Exit(ExitCode.FINDING)


def document_of(answer: Answer, plan: ServerPlan | None, collected: Collected) -> dict[str, Any]:
    """The JSON document of a diagnosis."""
    inputs = {
        "kinds": {source: list(kinds) for source, kinds in collected.kinds.items()},
        "unknown_files": [{"source": file.source, "reason": file.reason} for file in collected.unknown],
        "notes": list(collected.notes),
        "facts": collected.facts.model_dump(mode="json", exclude_unset=True, exclude_none=True),
    }
    return {
        **answer.model_dump(mode="json"),
        "inputs": inputs,
        "plan": None if plan is None else plan.model_dump(mode="json"),
    }


def _print_inputs(collected: Collected) -> None:
    """What was read, and what was not, on stderr."""
    for source, kinds in collected.kinds.items():
        err.print(f"read {source}: {', '.join(dict.fromkeys(kinds))}", markup=False, soft_wrap=True)
    for file in collected.unknown:
        err.print(f"not understood: {file.source}: {file.reason}", markup=False, soft_wrap=True)
    for note in collected.notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
