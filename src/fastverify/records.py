"""Benchmark records: what was run, where, from which commit, and every raw sample.

A claim of speed anywhere in the project points to a file that `write_record` made. Source of the fields:
docs/lab-notes.md lists what a reader needs to repeat a run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastverify.hardware import read_machine

SCHEMA_VERSION = 1
_DIRTY = "-dirty"  # what `git describe --dirty` appends
_NUMBERS = re.compile(r"\[\n\s*(-?\d[^\[\]{}\"]*?)\n\s*\]")


def write_record(
    path: Path,
    *,
    question: str,
    settings: dict[str, Any],
    results: dict[str, Any],
    machine: dict[str, Any] | None = None,
    commit: str = "",
) -> None:
    """Write one JSON record; `results` holds raw samples, not only their medians.

    `machine`: facts beside the CPU's. `commit`: what runs here, where no checkout tells; as `git describe` writes it.
    """
    record = {
        "schema_version": SCHEMA_VERSION,
        "question": question,
        "command": " ".join(["python", *(Path(sys.argv[0]).name, *sys.argv[1:])]),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": read_commit(commit),
        "machine": read_machine().to_dict() | (machine or {}),
        "settings": settings,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_format(record), encoding="utf-8")


def read_commit(given: str = "") -> dict[str, str | bool]:
    """Commit hash and whether tracked files differ from it; "unknown" outside a checkout, unless it was `given`."""
    if given:
        return {"hash": given.removesuffix(_DIRTY), "dirty": given.endswith(_DIRTY)}
    folder = Path(__file__).resolve().parent
    head = _git(folder, "rev-parse", "HEAD")
    return {"hash": head or "unknown", "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _format(record: dict[str, Any]) -> str:
    """Indented, with lists of numbers on one line: a record holds tens of thousands of samples."""
    text = json.dumps(record, indent=1, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
