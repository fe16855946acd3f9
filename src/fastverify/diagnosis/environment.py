"""What this machine is made of, as far as it decides collectives: `fastverify env` prints it, `diagnose` reads it back.

It starts nothing, changes nothing, and needs no GPU: what could not be read is listed with its reason. Facts that
reported.py knows carry its names; others stand under `host.` and `software.`. Texts of other tools are kept as they
are, since their readers exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastverify.diagnosis.gpu_facts import read_gpu_facts
from fastverify.diagnosis.host_facts import read_host_facts
from fastverify.diagnosis.readers.env_dump import KIND
from fastverify.diagnosis.redact import redact
from fastverify.diagnosis.software_facts import read_software_facts
from fastverify.diagnosis.tool_output import ToolOutput, run_tool

SCHEMA_VERSION = 1
Fact = str | int | float | bool | list[str] | list[int] | list[float]


@dataclass
class Environment:
    """`facts` by name, `tools` by command, `unread` by what is missing."""

    facts: dict[str, Fact] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Fact | None, why_not: str = "") -> None:
        """Add a fact, or why it is missing."""
        if value is not None:
            self.facts[name] = value
        elif why_not:
            self.unread[name] = why_not

    def add_tool(self, output: ToolOutput) -> None:
        """Keep what a tool printed, or why it did not."""
        if output.text is not None:
            self.tools[output.command] = output.text
        else:
            self.unread[output.command] = output.problem

    def to_document(self, *, redacted: bool = True) -> dict[str, Any]:
        """What `--json` prints."""
        hide: Callable[[str], str] = redact if redacted else str
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "redacted": redacted,
            # A version of four numbers looks like an address.
            "facts": {name: value if _is_version(name) else _hidden(value, hide) for name, value in self.facts.items()},
            "tools": {command: hide(text) for command, text in self.tools.items()},
            "unread": {what: hide(why) for what, why in self.unread.items()},
        }


def read_environment(python: str | None = None, run: Callable[..., ToolOutput] = run_tool) -> Environment:
    """Read everything now; takes a few seconds where NVIDIA tools are. `python` is the interpreter of the server."""
    environment = Environment()
    read_gpu_facts(environment, run)
    read_host_facts(environment)
    read_software_facts(environment, run, python)
    return environment


def _is_version(name: str) -> bool:
    return name.startswith("hardware.packages.") or name == "hardware.driver_version"


def _hidden(value: Fact, hide: Callable[[str], str]) -> Fact:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [hide(item) if isinstance(item, str) else item for item in value]  # type: ignore[return-value]
    return value
