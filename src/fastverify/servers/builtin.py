"""The built-in engine as a server: `fastverify serve` in a process of its own, never as an import.

A setting is a flag: `num_draft_steps=4` is `--num-draft-steps 4`, `fuse_rmsnorm=False` is `--no-fuse-rmsnorm`. Which
settings exist is the server's knowledge; a wrong one ends its start with exit code 3 and the reason in the log.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastverify.errors import ConfigError
from fastverify.servers.http_server import HttpServer
from fastverify.servers.process import ServerProcess
from fastverify.servers.server import Arm, LaunchSpec, Setting

LISTENING = re.compile(r"^fastverify: listening on (http://\S+)$", flags=re.MULTILINE)
PROGRAM = (sys.executable, "-m", "fastverify")
FREE_PORT = ("--port", "0")
SETTING_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Arbitrary: the bundled model is up in about 5 s; a large checkpoint on a slow disk needs minutes.
START_TIMEOUT_S = 300.0


class BuiltinServer:
    """Launches `fastverify serve`; one launch serves both arms, chosen per request."""

    name = "builtin"

    def __init__(self, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._start_timeout_s = start_timeout_s

    def launch_spec(self, settings: Mapping[str, Setting]) -> LaunchSpec:
        """The command line for these settings."""
        return LaunchSpec(argv=builtin_argv(settings), settings=dict(settings))

    def launch(self, spec: LaunchSpec, log_path: Path) -> BuiltinRunning:
        """Start it and wait until it is healthy. Raises ServerStartError with the tail of its log."""
        process = ServerProcess(spec.argv, spec.env, log_path)
        url = process.wait_until_healthy(find_listening_url, "/health", self._start_timeout_s)
        try:
            return BuiltinRunning(process, url)
        except BaseException:
            process.stop()
            raise


class BuiltinRunning(HttpServer):
    """A healthy built-in server."""

    def arms(self) -> tuple[Arm, ...]:
        """Plain decoding always; speculative decoding where the server has a drafter."""
        return ("plain",) if self.settings().get("drafter") == "none" else ("plain", "speculative")

    def request_fields(self, arm: Arm) -> dict[str, object]:
        """The arm of one request, and the token ids that the gates compare."""
        if arm not in self.arms():
            raise ConfigError(f"this server serves {', '.join(self.arms())} only, got arm {arm!r}. Give it a drafter.")
        return {"speculative": arm == "speculative", "return_token_ids": True}


def builtin_argv(settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """Command line of the built-in server on a free port. Raises ConfigError for a name that cannot be a flag."""
    flags: list[str] = []
    for name, value in settings.items():
        if not SETTING_NAME.fullmatch(name):
            raise ConfigError(f"a setting is named like num_draft_steps, got {name!r}.")
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return (*PROGRAM, "serve", *FREE_PORT, *flags)


def as_typed(argv: Sequence[str]) -> str:
    """A launch command as a user types it: without this interpreter, and on the server's own default port."""
    words = list(argv)
    if words[: len(PROGRAM)] == list(PROGRAM):
        words = ["fastverify", *words[len(PROGRAM) :]]
    if words[2:4] == list(FREE_PORT):
        del words[2:4]
    return shlex.join(words)


def find_listening_url(log_text: str) -> str | None:
    """The URL of the one line that the server prints when it is up."""
    found = LISTENING.search(log_text)
    return found.group(1) if found else None
