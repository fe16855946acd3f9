"""The `fastverify` command: collects the verbs and turns errors into one line and an exit code.

A FastverifyError is a user's answer, so it has no traceback; anything else is our bug and keeps its own.
"""

import logging
import os
import sqlite3
import sys
from typing import Annotated

import typer

from fastverify import __version__, env
from fastverify.cli.console import err
from fastverify.cli.exit_codes import ExitCode
from fastverify.cli.verbs import LazyVerbs
from fastverify.errors import ConfigError, FastverifyError

# typer carries its own copy of click in newer releases, so the base of its usage errors is reached through typer alone.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="fastverify",
    cls=LazyVerbs,
    help="Find out why speculative decoding is slow on this machine, and make it fast.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastverify {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    env.check_unknown()
    _configure_logging(env.read("FASTVERIFY_LOG"))
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _configure_logging(level_name: str) -> None:
    level = logging.getLevelNamesMapping().get(level_name.upper())
    if level is None:
        raise ConfigError(f"FASTVERIFY_LOG must be debug, info, warning or error, got {level_name!r}.")
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(args=arguments, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # what is short waits in the buffer: a reader that left must show here, not at exit
        return code if isinstance(code, int) else ExitCode.OK
    except FastverifyError as error:
        err.print(f"fastverify: {error}", markup=False, soft_wrap=True)
        return error.exit_code
    except typer.Exit as request:
        return request.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return ExitCode.ENVIRONMENT
    except (OSError, sqlite3.Error) as error:
        # A full disk, a folder that is read-only or gone, a damaged ledger: FASTVERIFY_LOG=debug shows where.
        logging.getLogger(__name__).debug("the operation that failed", exc_info=True)
        err.print(f"fastverify: {_system_words(error)}", markup=False, soft_wrap=True)
        return ExitCode.ENVIRONMENT
    except SystemExit as request:
        if isinstance(request.__context__, BrokenPipeError):  # typer's 1 would read as a finding
            return ExitCode.ENVIRONMENT
        raise
    except (typer.Abort, KeyboardInterrupt):
        err.print("fastverify: interrupted")
        return ExitCode.INTERRUPTED
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if message:  # a group without a verb has printed its help and says nothing else
            err.print(f"fastverify: {message} Try `fastverify --help`.", markup=False, soft_wrap=True)
        return ExitCode.BAD_INPUT


def _system_words(error: OSError | sqlite3.Error) -> str:
    if isinstance(error, sqlite3.Error):
        return (
            f"a ledger must be readable and writable, but SQLite said: {error}. Check the disk, or give another folder."
        )
    where = f" ({error.filename})" if error.filename is not None else ""
    return f"the system refused a file operation: {error.strerror or error}{where}. Check the path, rights and space."


def main() -> None:
    """Entry point of the `fastverify` script."""
    sys.exit(run())
