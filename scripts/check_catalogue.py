"""Checks the catalogues of experiments against the servers' own wheels: every flag, variable and setting must exist.

Downloads the wheels (40 MB and 340 MB) unless `--wheels` names a folder that has them. Slow, so no part of `make test`:
run it when the catalogue changes or a new release of a server is out. Exit code 1 lists what is gone.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fastverify.tuning.catalogue.entry import CatalogueEntry, catalogue_of

VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
# Read by NCCL and by C++ code; no Python file of the server needs to mention them.
FOREIGN_VARIABLES = ("NCCL_", "FASTVERIFY_", "VLLM_CUSTOM_ALLREDUCE_ALGO")
# Where a server defines its flags, settings and variables.
ARGUMENT_FILES = {
    "sglang": ("sglang/srt/arg_groups/", "sglang/srt/server_args.py", "sglang/srt/environ.py"),
    "vllm": ("vllm/config/", "vllm/engine/arg_utils.py", "vllm/envs.py"),
}
# Strings that are looked for as they stand, where an entry of the catalogue or a reader rests on them.
LOG_LINES = {
    "sglang": (
        "PCIe-only GPUs",
        "FlashInfer allreduce fusion requires SM90 or SM10X",
        "Decode batch",
    ),
    "vllm": (
        "PCIe-only GPUs",
        "Initialized FlashInfer PCIe IPC",
        "max size is not provided",
    ),
}


@dataclass
class Definitions:
    """Names that a wheel's argument files define, and the text of all its Python files."""

    flags: set[str] = field(default_factory=set)
    class_fields: set[str] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)


def main() -> int:
    """Check every server; prints what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, help="folder with the wheels, to avoid the download")
    for server, version in VERSIONS.items():
        parser.add_argument(f"--{server}", default=version, help=f"version to check against (default {version})")
    options = parser.parse_args()
    missing: list[str] = []
    for server in VERSIONS:
        version = getattr(options, server)
        with tempfile.TemporaryDirectory() as folder:
            wheel = wheel_of(server, version, options.wheels or Path(folder))
            definitions = read_wheel(wheel, ARGUMENT_FILES[server])
        found = list(missing_of(server, version, definitions))
        print(f"{server} {version}: {len(definitions.flags)} flags known, {len(found)} names of the catalogue missing")
        missing += found
    for line in missing:
        print(f"  {line}")
    return 1 if missing else 0


def wheel_of(server: str, version: str, folder: Path) -> Path:
    """The wheel in the folder, downloaded where it is not there."""
    if not list(folder.glob(f"{server}-{version}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, f"{server}=={version}"], check=True)
    return next(folder.glob(f"{server}-{version}-*.whl"))


def read_wheel(path: Path, argument_files: tuple[str, ...]) -> Definitions:
    """Flags and class fields of the argument files, and every source."""
    definitions = Definitions()
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name.endswith(".py"):
                source = wheel.read(name).decode("utf-8", "replace")
                definitions.sources.append(source)
                if name.startswith(argument_files):
                    _read_source(source, definitions)
    return definitions


def missing_of(server: str, version: str, definitions: Definitions) -> Iterator[str]:
    """Names that the catalogue uses for this version and the wheel does not define."""
    text = "\n".join(definitions.sources)
    for entry in catalogue_of(server):
        if entry.versions.contains(version):
            yield from (f"{server} {version}: {entry.id}: {name}" for name in _missing_names(entry, definitions, text))
    yield from (f"{server} {version}: log line {line!r}" for line in LOG_LINES[server] if line not in text)


def _missing_names(entry: CatalogueEntry, definitions: Definitions, text: str) -> Iterator[str]:
    for flag in (*entry.flags, *entry.conflict_flags, *entry.gates.present_flags):
        if f"--{flag}" not in definitions.flags and flag.replace("-", "_") not in definitions.class_fields:
            yield f"flag --{flag}"
    for name in entry.speculative_config:
        if name not in definitions.class_fields:
            yield f"speculative setting {name}"
    for variable in entry.env:
        if (
            not variable.startswith(FOREIGN_VARIABLES)
            and variable not in definitions.class_fields
            and variable not in text
        ):
            yield f"variable {variable}"


def _read_source(source: str, definitions: Definitions) -> None:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("--"):
                definitions.flags.add(node.value)
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    definitions.class_fields.add(item.target.id)
                elif isinstance(item, ast.Assign):
                    definitions.class_fields |= {t.id for t in item.targets if isinstance(t, ast.Name)}


if __name__ == "__main__":
    sys.exit(main())
