"""`fastverify report`: one HTML page without network, Markdown and JSON from a campaign folder, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastverify.cli.campaign import existing_folder
from fastverify.cli.console import print_json, print_text
from fastverify.cli.tune import FolderArgument, JsonOption
from fastverify.tuning.report import build_report, write_report


def report(
    folder: FolderArgument = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write; default: the campaign folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write report.html, report.md and report.json."""
    folder = existing_folder(folder)
    built = build_report(folder)
    files = write_report(built, out_dir or folder)
    if as_json:
        print_json(built.model_dump(mode="json"))
        return
    for path in files:
        print_text(str(path))
