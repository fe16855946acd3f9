"""The folders that the settings `model` and `draft` name: paths, or what comes with the package.

Knows no torch and reads no weights.
"""

from __future__ import annotations

from pathlib import Path

from fastverify.bundled import draft_dir, target_dir
from fastverify.engine.config import BUNDLED
from fastverify.errors import ConfigError


def target_folder(model: str) -> Path:
    """Folder of the setting `model`, which holds config.json, weights and tokenizer.json."""
    return _checked("model", target_dir() if model == BUNDLED else Path(model))


def draft_folder(draft: str) -> Path:
    """Folder of the setting `draft`."""
    return _checked("draft", draft_dir() if draft == BUNDLED else Path(draft))


def _checked(setting: str, folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{setting} must be a folder with a config.json, found none in {folder}. Check the path.")
    return folder
