"""Runs one tool that only prints, and keeps what it printed or why it did not. A tool that hangs is ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# Arbitrary: nvidia-smi answers in a second on eight GPUs; a wedged driver never does.
TIMEOUT_S = 20.0
MAX_CHARS = 2_000_000


@dataclass(frozen=True)
class ToolOutput:
    """`text` is None where the tool is missing, failed or hung; then `problem` says so."""

    command: str
    text: str | None
    problem: str = ""


def run_tool(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> ToolOutput:
    """Run a command without a shell, in the C locale."""
    command = " ".join(arguments)
    try:
        done = subprocess.run(
            list(arguments),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return ToolOutput(command, None, f"{arguments[0]} is not installed")
    except subprocess.TimeoutExpired:
        return ToolOutput(command, None, f"no answer in {timeout_s:.0f} s")
    except OSError as error:
        return ToolOutput(command, None, f"cannot start: {error.strerror}")
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [""]
        return ToolOutput(command, None, f"exit code {done.returncode}: {last[0][:200]}")
    return ToolOutput(command, done.stdout[:MAX_CHARS])
