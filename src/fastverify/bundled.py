"""What comes with the package: the trained target, its EAGLE-3 head, held-out prompts, and their checksums.

No torch, no weights are read. How it was made, from which sources and licences: assets/DATA.md, docs/bundled-model.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from fastverify.errors import ConfigError

ASSETS = Path(__file__).resolve().parent / "assets"
CHECKSUMS = ASSETS / "SHA256SUMS"


@dataclass(frozen=True)
class HeldOutPrompt:
    """A piece of text that no training file contained; `source` names the file it was cut from."""

    prompt_id: str
    text: str
    source: str


def target_dir() -> Path:
    """Hugging Face folder of the bundled target, with its tokenizer.json."""
    return ASSETS / "target"


def draft_dir() -> Path:
    """Folder of its EAGLE-3 head."""
    return ASSETS / "draft"


def prompt_domains() -> tuple[str, ...]:
    """Domains that `prompts` knows."""
    return tuple(sorted(path.stem for path in (ASSETS / "prompts").glob("*.jsonl")))


def prompts(domain: str) -> tuple[HeldOutPrompt, ...]:
    """Held-out prompts of one domain, always in the same order. Raises ConfigError for an unknown domain."""
    if domain not in prompt_domains():
        raise ConfigError(f"a prompt domain must be one of {', '.join(prompt_domains())}, got {domain!r}.")
    lines = (ASSETS / "prompts" / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(HeldOutPrompt(**json.loads(line)) for line in lines)


def wrong_files() -> tuple[str, ...]:
    """Bundled files that are missing or whose content is not what their checksum says."""
    lines = (line.split(maxsplit=1) for line in CHECKSUMS.read_text(encoding="utf-8").splitlines())
    return tuple(name for digest, name in lines if _sha256(ASSETS / name) != digest)


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
