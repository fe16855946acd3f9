"""The verbs of `fastverify`, each imported when it is asked for: a server should not wait for the report's templates.

Each also imports torch only inside, so a missing optional package breaks only the verbs that need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

# Verb -> module below fastverify.cli, and the function or typer application in it; in the order of `--help`.
VERBS = {
    "demo": ("demo", "demo"),
    "profile": ("profile", "profile"),
    "diagnose": ("diagnose", "diagnose"),
    "plan": ("plan", "plan"),
    "tune": ("tune", "tune"),
    "status": ("status", "status"),
    "report": ("report", "report"),
    "bench": ("bench", "app"),
    "env": ("env", "print_env"),
    "generate": ("generate", "generate"),
    "serve": ("serve", "serve"),
    "train": ("train", "app"),
    "env-vars": ("env_vars", "print_env_vars"),
}


class LazyVerbs(TyperGroup):
    """A command group whose commands are imported by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a verb, None for a word that is not one."""
        if cmd_name not in VERBS:
            return None
        module, attribute = VERBS[cmd_name]
        verb = getattr(import_module(f"fastverify.cli.{module}"), attribute)
        if not isinstance(verb, typer.Typer):
            application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            application.command(cmd_name)(verb)
            verb = application
        command = typer.main.get_command(verb)
        command.name = cmd_name
        return command
