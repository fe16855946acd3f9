"""`fastverify env`: what this machine and its software are, for a report or for `fastverify diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fastverify.cli.console import err, out, print_json, print_text
from fastverify.diagnosis.environment import read_environment
from fastverify.errors import ConfigError


def print_env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, which `diagnose` reads.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the JSON document to this file.")] = None,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep hosts, users, paths and tokens.")] = False,
    python: Annotated[str | None, typer.Option(help="Interpreter of the server, if it is not this one.")] = None,
) -> None:
    """Dump GPUs, links, peer-to-peer, ACS, IOMMU, NUMA, versions and NCCL settings. Starts nothing, needs no GPU."""
    document = read_environment(python).to_document(redacted=not no_redact)
    if output is not None:
        try:
            output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--output must be a file that can be written, got {output}: {error.strerror}."
            ) from error
        err.print(f"wrote {output}", markup=False)
    if as_json:
        print_json(document)
    elif output is None:
        _print_tables(document)


def _print_tables(document: dict[str, Any]) -> None:
    table = Table("fact", "value", box=None, pad_edge=False)
    for name, value in document["facts"].items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(name, shown or "none")
    out.print(table)
    for command, text in document["tools"].items():
        print_text(f"\n$ {command}\n{text.rstrip()}")
    if document["unread"]:
        missing = Table("not read", "why", box=None, pad_edge=False)
        for what, why in document["unread"].items():
            missing.add_row(what, why)
        out.print()
        out.print(missing)
