"""`fastverify env-vars`: every environment variable that is read, its default and its present value."""

from typing import Annotated

import typer
from rich.table import Table

from fastverify import env
from fastverify.cli.console import out, print_json


def print_env_vars(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the FASTVERIFY_ environment variables (debugging and building only)."""
    if as_json:
        rows = [
            {"name": v.name, "meaning": v.meaning, "default": v.default, "value": env.read(v.name)}
            for v in env.VARIABLES
        ]
        print_json({"schema_version": 1, "variables": rows})
        return
    table = Table("variable", "value", "default", "meaning")
    for variable in env.VARIABLES:
        table.add_row(variable.name, env.read(variable.name), variable.default, variable.meaning)
    out.print(table)
