"""The licence texts of all sources, each distinct text once, for the package that ships what was trained on them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from fastverify.training.corpus.fetch import fetch, read_files
from fastverify.training.corpus.sources import SOURCES, Source

_LICENCE_FILE = re.compile(r"(^|/)(licen[sc]e|copying|copyright)(\.(txt|md|rst))?$", re.IGNORECASE)
# Binary wheels append the licences of the compiled libraries they carry, which are no part of the text used here.
_BUNDLED_LIBRARIES = re.compile(
    r"\n-{4,}\n+(this binary distribution|the following|name: )|\nThis binary distribution", re.I
)


def collect_licences(downloads: Path) -> str:
    """One text file: each licence text under the names of the sources that carry it."""
    names: dict[str, list[str]] = defaultdict(list)
    for source in SOURCES:
        names[licence_text(source, downloads)].append(f"{source.name} {source.version} ({source.licence})")
    sections = [f"{'=' * 100}\n{chr(10).join(users)}\n{'=' * 100}\n\n{text}\n" for text, users in names.items()]
    return "\n".join(sections)


def licence_text(source: Source, downloads: Path) -> str:
    """The licence file of a source: the one nearest to the root of its archive."""
    archive = fetch(source, downloads)
    if source.kind == "stdlib":
        return (archive / "LICENSE.txt").read_text(encoding="utf-8").strip()
    found = [(path, content) for path, content in read_files(source, archive) if _LICENCE_FILE.search(path)]
    if not found:
        return f"The archive carries no licence file; its metadata says {source.licence}."
    _, content = min(found, key=lambda file: (file[0].count("/"), file[0]))
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n").strip()
    return _BUNDLED_LIBRARIES.split(text)[0].strip()
