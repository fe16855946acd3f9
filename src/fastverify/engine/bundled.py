"""Where the bundled target and its EAGLE-3 head lie in the package, and what "bundled" means in a setting.

Knows no torch and reads no weights.
"""

from __future__ import annotations

from pathlib import Path

from fastverify.engine.config import BUNDLED
from fastverify.errors import ConfigError

ASSETS = Path(__file__).parent.parent / "assets"


def target_folder(model: str) -> Path:
    """Folder of the setting `model`, which holds config.json, weights and tokenizer.json."""
    return _folder("model", model, ASSETS / "target")


def draft_folder(draft: str) -> Path:
    """Folder of the setting `draft`."""
    return _folder("draft", draft, ASSETS / "draft")


def _folder(setting: str, value: str, bundled: Path) -> Path:
    folder = bundled if value == BUNDLED else Path(value)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{setting} must be a folder with a config.json, found none in {folder}. Check the path.")
    return folder
