"""Checks that the texts which the log readers look for stand in the servers' own sources: a reworded line turns it red.

    python scripts/check_log_texts.py [--wheels FOLDER]

Downloads the newest wheels that the readers know (about 500 MB for vLLM, hence not part of `make test`), or takes those
in FOLDER. Prints one line per text and release, and ends with exit code 1 where no release has a text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from fastverify.diagnosis.readers import log_messages

RELEASES = ("sglang==0.5.23", "vllm==0.33.0")
# What sglang_log.py, vllm_log.py, bench_text.py and the metrics readers look for, as the sources write it.
TEXTS = (
    *("Decode batch", "accept len: ", "gen throughput (token/s): ", "#running-req: ", "server_args="),
    *("max_running_requests=", "non-default args: ", "Initializing a V1 LLM engine (v", "Avg generation throughput: "),
    *("Running: %d reqs", "SpecDecoding metrics: ", "Mean acceptance length: ", "Per-position acceptance rate: "),
    *("all-reduce backends (in dispatch order) for group ", "Serving Benchmark Result", "Accept length:"),
    *("Acceptance length:", "Output token throughput (tok/s):", "spec_decode_acceptance_length"),
    *(
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "vllm:inter_token_latency_seconds",
    ),
    *("sglang:spec_accept_length", "sglang:spec_verify_calls_total", "sglang:forward_execution_seconds_total"),
    *("avg_spec_accept_length", "step_time_dict"),
)


def main() -> int:
    """Check every text in every wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="folder with wheels of sglang and vllm; downloaded otherwise")
    folder = parser.parse_args().wheels
    with tempfile.TemporaryDirectory() as scratch:
        if folder is None:
            folder = Path(scratch)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
            subprocess.run([*command, *RELEASES], check=True)
        sources = {wheel.name: read_sources(wheel) for wheel in sorted(folder.glob("*.whl"))}
    if not sources:
        sys.exit(f"a check needs at least one wheel, found none in {folder}.")
    missing = 0
    for text in (*TEXTS, *(message.text for message in log_messages.MESSAGES)):
        found = [name for name, source in sources.items() if squeeze(text) in source]
        print(f"{'ok  ' if found else 'LOST'} {text!r}: {', '.join(found) or 'in no wheel'}")
        missing += not found
    return 1 if missing else 0


def read_sources(wheel: Path) -> str:
    """All Python of a wheel with string literals joined, so that a text broken over lines is found."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        return "\n".join(squeeze(archive.read(name).decode(errors="replace")) for name in names)


def squeeze(text: str) -> str:
    """Without the blanks, quotes and prefixes between adjacent literals."""
    for mark in ('" f"', '" "', "' '", '"\n', '"', "'", "\\n"):
        text = text.replace(mark, "")
    return "".join(text.replace(" f", " ").split())


if __name__ == "__main__":
    sys.exit(main())
