#!/usr/bin/env python3
"""Put a trained target and head into the package: weights, logs, corpus manifest, licences, prompts, checksums.

    python scripts/bundle_assets.py --target runs/target --draft runs/draft --corpus .corpus

DATA.md in the assets folder is written by hand; everything else there comes from here and scripts/cut_prompts.py.
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

from fastverify.training.corpus.licences import collect_licences
from fastverify.training.loop import LOG_FILE

ASSETS = Path(__file__).resolve().parent.parent / "src" / "fastverify" / "assets"
LOG_RECORDS = 150


def main() -> None:
    """Copy, thin the logs, and write SHA256SUMS over every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="run folder of `fastverify train target`")
    parser.add_argument("--draft", type=Path, help="run folder of `fastverify train draft`")
    parser.add_argument("--corpus", type=Path, default=Path(".corpus"))
    arguments = parser.parse_args()
    for name, run in (("target", arguments.target), ("draft", arguments.draft)):
        if run:
            _copy_model(run / "model", ASSETS / name)
            thinned = thin_log((run / LOG_FILE).read_text(encoding="utf-8").splitlines())
            (ASSETS / f"training_log_{name}.jsonl").write_text("\n".join(thinned) + "\n", encoding="utf-8")
    shutil.copyfile(arguments.corpus / "manifest.json", ASSETS / "corpus_manifest.json")
    (ASSETS / "LICENSES.txt").write_text(collect_licences(arguments.corpus / "downloads"), encoding="utf-8")
    write_checksums()


def _copy_model(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        shutil.copyfile(file, target / file.name)


def thin_log(lines: list[str]) -> list[str]:
    """Every measurement on held-out text and about LOG_RECORDS loss records."""
    losses = [line for line in lines if "loss" in json.loads(line)]
    kept = set(losses[:: max(len(losses) // LOG_RECORDS, 1)]) | {losses[-1]}
    return [line for line in lines if line in kept or "loss" not in json.loads(line)]


def write_checksums() -> None:
    """SHA256SUMS over every other file of the assets."""
    files = sorted(path for path in ASSETS.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(ASSETS).as_posix()}" for file in files
    ]
    (ASSETS / "SHA256SUMS").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
