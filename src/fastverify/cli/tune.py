"""`fastverify tune`: run a plan, one launch per trial, and end with a confirmed winner. The same command resumes it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from fastverify.cli.campaign import document_of, existing_folder, open_tuner
from fastverify.cli.campaign_tables import ends_table, experiments_table
from fastverify.cli.console import out, print_json, print_text
from fastverify.tuning.campaign import Campaign
from fastverify.tuning.report import build_report, write_report
from fastverify.tuning.result import TuneResult

FolderArgument = Annotated[Path | None, typer.Argument(help="Campaign folder; default: the newest in runs/.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def tune(
    folder: FolderArgument = None,
    budget_s: Annotated[
        float | None, typer.Option(min=1, help="Seconds for all trials; what does not fit is skipped and says so.")
    ] = None,
    max_trials: Annotated[int | None, typer.Option(min=1, help="Experiments tried at most.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the experiments of a plan, keep what wins, confirm the winner, and write the report."""
    folder = existing_folder(folder)
    with closing(Campaign.open(folder)) as campaign:
        document = campaign.document
    options = document.options.model_copy(update={"budget_s": budget_s, "max_trials": max_trials})
    with open_tuner(folder, document.model_copy(update={"options": options})) as tuner:
        result = tuner.run()
    show_result(result, folder, as_json)


def show_result(result: TuneResult, folder: Path, as_json: bool) -> None:
    """Write the report, then print the result: one JSON object, or verdicts, tables and the launch command."""
    files = write_report(build_report(folder), folder)
    if as_json:
        print_json(document_of(result.to_json(), folder, files))
        return
    out.print(experiments_table(result.experiments))
    out.print(ends_table(result))
    print_text(f"before: {result.headline_before}")
    print_text(f"after:  {result.headline_after}")
    print_text(result.winner.detail)
    print_text(f"launch: {result.winner.launch_command}")
    print_text(f"report: {files[0]}")
