"""Training state on disk: written beside, then renamed, so that an interrupted write never harms the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fastverify.errors import ConfigError

FILE_NAME = "training-state.pt"


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's training state."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE_NAME}.tmp"
    torch.save(state, temporary)
    temporary.replace(folder / FILE_NAME)


def load_state(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The folder's training state, None if there is none.

    Raises: ConfigError when it was made with other settings, naming those that differ.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    different = sorted(
        k for k in settings.keys() | state["settings"].keys() if settings.get(k) != state["settings"].get(k)
    )
    if different:
        changes = ", ".join(f"{key}: {state['settings'].get(key)!r} -> {settings.get(key)!r}" for key in different)
        raise ConfigError(
            f"a run resumes with the settings it began with, but these changed: {changes}. Use a new folder."
        )
    return state
