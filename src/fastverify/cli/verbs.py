"""The list of verbs, imported one by one so that a missing optional package breaks only the verbs that need it."""

import typer

from fastverify.cli import env_vars, serve


def add_verbs(app: typer.Typer) -> None:
    """Attach every verb to the root command."""
    app.command("env-vars")(env_vars.print_env_vars)
    app.command("serve")(serve.serve)
