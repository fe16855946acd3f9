"""Fuzz the trace reader and the profile for some minutes on real files:  python scripts/fuzz_traces.py --minutes 10

Each batch runs in a process of its own, so that a crash or a hang of native code is seen, named by its seed and
survived. Exit code 1 when anything was found; `--batch SEED` shows it again.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.trace.fuzz.check import SMALL_FILES, TRACES, check_file  # noqa: E402
from tests.trace.fuzz.mutate import mutate  # noqa: E402

BATCH = 50
SECONDS_PER_FILE = 10.0


def load_seeds() -> list[bytes]:
    packed = [path for stem in SMALL_FILES for path in sorted(TRACES.glob(f"{stem}*.gz"))]
    plain = sorted(TRACES.glob("broken/*.json"))
    return [gzip.decompress(path.read_bytes()) for path in packed] + [path.read_bytes() for path in plain]


def run_batch(first_seed: int) -> None:
    """Runs in the child: prints each seed before it is tried, so that the parent knows where a crash was."""
    seeds = load_seeds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged-rank3.json"
        for seed in range(first_seed, first_seed + BATCH):
            print(seed, flush=True)
            path.write_bytes(mutate(seeds[seed % len(seeds)], seed))
            begin = time.monotonic()
            check_file(path)
            assert time.monotonic() - begin < SECONDS_PER_FILE, "too slow"


def last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--batch", type=int, metavar="SEED", help="only the files from SEED on, in this process")
    options = parser.parse_args()
    if options.batch is not None:
        run_batch(options.batch)
        return 0
    end = time.monotonic() + 60 * options.minutes
    seed, num_files, found = options.first_seed, 0, []
    while time.monotonic() < end:
        command = [sys.executable, __file__, "--batch", str(seed)]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=BATCH * SECONDS_PER_FILE)
            tried, failed, why = child.stdout, child.returncode != 0, last_line(child.stderr)
        except subprocess.TimeoutExpired as error:
            tried, failed, why = (error.stdout or b"").decode(), True, "hang"
        last = int(last_line(tried) or seed)
        num_files += last - seed + 1
        if failed:
            found.append((last, why))
            print(f"seed {last}: {why}", flush=True)
        seed = last + 1
    print(f"{num_files} files, {len(found)} failures, seeds {options.first_seed} to {seed - 1}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
