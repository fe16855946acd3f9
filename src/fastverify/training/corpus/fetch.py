"""Download a source and list its files, without running anything it contains except an sdist's own metadata step.

Wheels come through `pip download`, Debian packages through `apt-get download`, the standard library from this Python.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from fastverify.errors import EnvironmentMissingError
from fastverify.training.corpus.sources import Source

# Wheels for one fixed platform, so that every machine reads the same files.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
PYTHON_VERSION = "3.12"


def fetch(source: Source, folder: Path) -> Path:
    """The archive of `source` below `folder`, downloaded unless it is there; for the standard library its folder."""
    if source.kind == "stdlib":
        return Path(sysconfig.get_path("stdlib"))
    target = folder / f"{source.kind}-{source.name}-{source.version.replace(':', '_')}"
    target.mkdir(parents=True, exist_ok=True)
    if not any(target.iterdir()):
        _run(_download_command(source, target), target)
    return next(target.iterdir())


def digest(archive: Path) -> str:
    """sha256 of an archive; of the standard library, of its sorted modules."""
    hasher = hashlib.sha256()
    for file in [archive] if archive.is_file() else _modules(archive):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()


def read_files(source: Source, archive: Path) -> Iterator[tuple[str, bytes]]:
    """(path inside the package, content) of every file, in a fixed order."""
    if archive.is_dir():
        for file in _modules(archive):
            yield file.relative_to(archive).as_posix(), file.read_bytes()
    elif source.kind == "wheel":
        with zipfile.ZipFile(archive) as package:
            for name in sorted(package.namelist()):
                yield name, package.read(name)
    elif source.kind == "sdist":
        yield from _tar_files(archive.read_bytes(), "r:gz", drop_first_folder=True)
    else:
        unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], capture_output=True, check=True)
        yield from _tar_files(unpacked.stdout, "r:", drop_first_folder=False)


def _modules(folder: Path) -> list[Path]:
    """Python files of the standard library, without what is installed beside it."""
    return sorted(file for file in folder.rglob("*.py") if "site-packages" not in file.parts)


def _tar_files(content: bytes, mode: Literal["r:", "r:gz"], drop_first_folder: bool) -> Iterator[tuple[str, bytes]]:
    files = []
    with tarfile.open(fileobj=io.BytesIO(content), mode=mode) as package:
        for member in package:
            file = package.extractfile(member) if member.isfile() else None
            if file is not None:
                name = member.name.partition("/")[2] if drop_first_folder else member.name.removeprefix("./")
                files.append((name, file.read()))
    yield from sorted(files)


def _download_command(source: Source, target: Path) -> list[str]:
    if source.kind == "deb":
        return ["apt-get", "download", source.requirement]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
    if source.kind == "sdist":
        return [*pip, "--no-binary", ":all:", source.requirement]
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    return [*pip, "--only-binary=:all:", "--python-version", PYTHON_VERSION, *platforms, source.requirement]


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise EnvironmentMissingError(f"the corpus needs `{command[0]}`, which is not on this machine.") from None
    except subprocess.CalledProcessError as error:
        raise EnvironmentMissingError(
            f"`{' '.join(command)}` must succeed, it ended with {error.returncode}: {error.stderr.strip()[-500:]}"
        ) from error
