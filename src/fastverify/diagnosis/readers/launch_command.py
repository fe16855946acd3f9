"""Launch commands of SGLang and vLLM as people paste them: environment in front, wrappers around, broken lines.

Wrappers (docker, srun, kubectl, uv, numactl, bash -c) are not understood, only stepped over: the command begins at the
word that starts a server. A YAML file of `--config` is read where it was given too. Flags that no server has are kept,
since a misspelt flag is a finding.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder
from fastverify.diagnosis.readers.server_settings import ServerName, add_settings, arm_of, canonical

KIND = "launch command"
MARKERS = ("sglang.launch_server", "sglang serve", "vllm serve", "vllm.entrypoints", "vllm/vllm-openai")
# One of these is in every text that has a command, however its words are laid out.
WORDS = ("launch_server", "serve", "vllm.entrypoints", "vllm-openai")
_SERVERS: dict[str, ServerName] = {
    "sglang.launch_server": "sglang",
    "sglang::launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "vllm.entrypoints.api_server": "vllm",
}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,100})=(.*)", flags=re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_SHORT_FLAGS = ("-tp", "-pp", "-dp", "-ep", "-sc", "-cc", "-q", "-O")
_ENV_FLAGS = ("-e", "--env")
# A word of the list that a compose file or a pod's manifest gives as command or arguments.
_YAML_ITEM = re.compile(r"- [\"']?([^\s\"']{1,400})[\"']?")
# Arbitrary: a command that spans more lines is a script, and its end is not to be found.
MAX_COMMAND_LINES = 120
MAX_WORDS = 2000
MAX_COMMANDS = 20


@dataclass(frozen=True)
class LaunchCommand:
    """One server start. `flags` are without `--`, as they were written; a flag without a value is True."""

    server: ServerName
    flags: dict[str, str | bool]
    env: dict[str, str]
    model: str | None
    line: int
    unreadable: tuple[str, ...] = field(default=())


def find_commands(document: Document) -> list[LaunchCommand]:
    """Every launch command of a text."""
    commands: list[LaunchCommand] = []
    if not any(word in document.text for word in WORDS):
        return commands
    for line, text in _logical_lines(document):
        if any(marker in text.replace('", "', " ") for marker in MARKERS):
            command = parse_command(text, line)
            if command is not None:
                commands.append(command)
        if len(commands) == MAX_COMMANDS:
            break
    return commands


def parse_command(text: str, line: int = 1) -> LaunchCommand | None:
    """The command of one logical line; None where no word of it starts a server."""
    words = _words(text)
    start, server = _find_server(words)
    if server is None:
        return None
    flags, positional, unreadable = _parse_flags(words[start:])
    if not flags and len(positional) != 1:
        # A sentence about a server.
        return None
    model = flags.get("model") or flags.get("model-path") or flags.get("model_path") or (positional or [""])[0]
    return LaunchCommand(
        server,
        flags,
        _environment(words[:start]),
        model if isinstance(model, str) and model else None,
        line,
        tuple(unreadable),
    )


def read_launch_commands(document: Document) -> Reading | None:
    """Flags, environment and what they mean, of every launch command in a text."""
    commands = find_commands(document)
    if not commands:
        return None
    builder = ReadingBuilder(KIND, document.source)
    for command in commands:
        add_command(builder, command)
    return builder.build()


def add_command(builder: ReadingBuilder, command: LaunchCommand) -> None:
    """The facts of one command."""
    settings = canonical(command.server, {**command.flags, **({"model": command.model} if command.model else {})})
    arm = arm_of(command.server, settings)
    builder.add("server", command.server, command.line, once=True)
    for name, value in command.flags.items():
        builder.add(f"launch.flags.{name}", value, command.line, arm=arm)
    for name, value in command.env.items():
        builder.add(f"launch.env.{name}", value, command.line, arm=arm)
    add_settings(builder, command.server, settings, command.line)
    builder.notes += [f"{builder.source}:{command.line}: {problem}" for problem in command.unreadable]


def _logical_lines(document: Document) -> Iterator[tuple[int, str]]:
    """Lines joined at a backslash, before a flag that begins the next line, and words of a YAML list."""
    start, parts = 0, [""]
    in_list = False
    for number, raw in document.lines:
        text = raw.strip().removeprefix("$ ").removeprefix("> ")
        item = _YAML_ITEM.fullmatch(text)
        text = item[1] if item else text
        continues = parts[-1].endswith("\\") or (bool(parts[-1]) and text.startswith("--")) or bool(item and in_list)
        in_list = bool(item)
        if continues and len(parts) < MAX_COMMAND_LINES:
            parts[-1] = parts[-1].removesuffix("\\")
            parts.append(text)
            continue
        if start:
            yield start, " ".join(parts).removesuffix("\\")
        start, parts = number, [text]
    if start:
        yield start, " ".join(parts).removesuffix("\\")


def _words(text: str) -> list[str]:
    """Shell words, or those of a JSON list. Text with an open quote is split at spaces, `bash -c '...'` is opened."""
    start, end = text.find('["'), text.rfind('"]')
    if 0 <= start < end and isinstance(listed := _json_list(text[start : end + 2]), list):
        return [str(word) for word in listed][:MAX_WORDS]
    try:
        words = shlex.split(text, comments=False)
    except ValueError:
        words = text.split()
    if len(words) < MAX_WORDS and any(" " in word and any(m in word for m in MARKERS) for word in words):
        words = [part for word in words for part in (_words(word) if word != text and " " in word else [word])]
    return words[:MAX_WORDS]


def _json_list(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _find_server(words: Sequence[str]) -> tuple[int, ServerName | None]:
    """Index of the first word after the server's name."""
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        if word in _SERVERS:
            skip = place + 1
            return (skip + 1 if words[skip : skip + 1] == ["serve"] else skip), _SERVERS[word]
        if name in ("sglang", "vllm") and words[place + 1 : place + 2] == ["serve"]:
            return place + 2, "sglang" if name == "sglang" else "vllm"
    # An image whose entry point is the server: `docker run ... vllm/vllm-openai:v0.11.0 --model ...`.
    for place, word in enumerate(words):
        if word.startswith("vllm/vllm-openai") and "docker" in words:
            return place + 1, "vllm"
    return 0, None


def _environment(words: Sequence[str]) -> dict[str, str]:
    """`NAME=value` before the command, in `env`, `export` and `docker run -e`."""
    found = {}
    for word in words:
        match = _ASSIGNMENT.fullmatch(word.removeprefix("--env=").removeprefix("-e=").rstrip(";"))
        if match and not word.startswith("--env-"):
            found[match[1]] = match[2]
    return found


def _parse_flags(words: Sequence[str]) -> tuple[dict[str, str | bool], list[str], list[str]]:
    flags: dict[str, str | bool] = {}
    positional: list[str] = []
    unreadable: list[str] = []
    name: str | None = None
    for word in words:
        if word in (";", "&&", "||", "|", "&", ">", "2>&1", ">>") or word.startswith((">", "2>")):
            break
        head, equals, value = word.partition("=")
        if word.startswith("--") or word in _SHORT_FLAGS or head in _SHORT_FLAGS:
            if not _FLAG.fullmatch(head):
                unreadable.append(f"{word[:60]!r} is no flag")
                name = None
                continue
            name = head.lstrip("-")
            flags[name] = value if equals else True
            name = None if equals else name
        elif name is not None:
            flags[name], name = _joined(flags[name], word), name
        else:
            positional.append(word)
    return flags, positional, unreadable


def _joined(known: str | bool, word: str) -> str:
    """Several values of one flag, such as `--cuda-graph-bs 1 2 4`, are one text."""
    return word if isinstance(known, bool) else f"{known} {word}"
