"""`serve.sh` of one experiment: the present launch with the experiment's changes, ready to run and to read.

With a known launch command the script holds it; otherwise it takes the command as its arguments and adds the changes.
Values are quoted for the shell, and flags of one report are never joined with those of another.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from fastverify.diagnosis.reported import LaunchFacts
from fastverify.servers.server import Setting
from fastverify.tuning.server_plan import ServerExperiment

_MODEL_FLAGS = ("model-path", "model", "model-tag")
_COMMANDS = {"sglang": ("python", "-m", "sglang.launch_server"), "vllm": ("vllm", "serve")}
_SPECULATIVE_CONFIG = "speculative-config"
_COMMENT_WIDTH = 116


def serve_script(server: str, launch: LaunchFacts, experiment: ServerExperiment) -> str:
    """Text of a bash script that starts the server with this experiment on."""
    lines = ["#!/usr/bin/env bash", *_comments(experiment), "set -euo pipefail"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**launch.env, **experiment.env}.items()]
    flags = _normal(launch.flags)
    changed = changed_flags(flags, experiment)
    if any(name in flags for name in _MODEL_FLAGS):
        words = list(_COMMANDS[server])
        if server == "vllm":
            words.append(str(next(changed.pop(name) for name in _MODEL_FLAGS if name in changed)))
        lines.append("exec " + " \\\n  ".join([shlex.join(words), *_flag_words(changed)]) + ' "$@"')
    else:
        removed = [f"--{name}" for name, value in experiment.flags.items() if value is None]
        note = f" without {', '.join(removed)}" if removed else ""
        lines.append(f"# Usage: serve.sh YOUR LAUNCH COMMAND{note}; the flags below are added and win.")
        lines.append('exec "$@"' + "".join(f" \\\n  {word}" for word in _flag_words(_additions(experiment))))
    return "\n".join(lines) + "\n"


def changed_flags(flags: Mapping[str, Setting], experiment: ServerExperiment) -> dict[str, Setting]:
    """The launch's flags with the experiment's changes; its speculative settings are merged into vLLM's JSON."""
    changed = dict(flags)
    for name, value in experiment.flags.items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
    if experiment.speculative_config:
        present = _document(changed.get(_SPECULATIVE_CONFIG))
        changed[_SPECULATIVE_CONFIG] = json.dumps(present | experiment.speculative_config)
    return changed


def _additions(experiment: ServerExperiment) -> dict[str, Setting]:
    added = {name: value for name, value in experiment.flags.items() if value is not None}
    if experiment.speculative_config:
        added[_SPECULATIVE_CONFIG] = json.dumps(experiment.speculative_config)
    return added


def _normal(flags: Mapping[str, Setting]) -> dict[str, Setting]:
    return {name.replace("_", "-"): value for name, value in flags.items()}


def _document(value: Setting | None) -> dict[str, Any]:
    try:
        document = json.loads(value) if isinstance(value, str) else {}
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _flag_words(flags: Mapping[str, Setting]) -> list[str]:
    """One word or pair per flag; a switch has no value, and a false one is left out."""
    words = []
    for name, value in flags.items():
        if value is False:
            continue
        words.append(shlex.quote(f"--{name}") + ("" if value is True else f" {shlex.quote(str(value))}"))
    return words


def _comments(experiment: ServerExperiment) -> Iterator[str]:
    yield from _wrapped(f"{experiment.id}: {experiment.title}")
    yield from _wrapped(f"Took effect when: {experiment.engagement}.")
    yield from _wrapped(f"Risk: {experiment.risk}. Undo: {experiment.undo}.")
    for remark in experiment.remarks:
        yield from _wrapped(f"Check first: {remark}.")


def _wrapped(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + len(word) + 1 > _COMMENT_WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    yield line
