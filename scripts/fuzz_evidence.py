"""Damages texts of every kind at random and diagnoses them: anything but an answer or a FastverifyError is a bug.

    python scripts/fuzz_evidence.py --seconds 600 --seed 1

Prints how many reports were tried, the slowest, and each different failure with the texts that caused it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastverify.diagnosis.answer import answer_report
from fastverify.diagnosis.collect import collect_documents
from fastverify.diagnosis.readers.document import document_of
from fastverify.errors import FastverifyError
from tests.diagnosis.readers import test_numbers, texts

SEEDS = (
    *(value for name, value in vars(texts).items() if name.isupper()),
    *(test_numbers.VLLM_PAGE, test_numbers.SGLANG_PAGE),
    '{"tp_size": 8, "speculative_algorithm": "EAGLE3", "version": "0.5.23", "internal_states":\n'
    '[{"avg_spec_accept_length": 2.0, "step_time_dict": {"1": [0.03]}}]}',
    '{"output_throughput": 60.0, "mean_ttft_ms": 1, "max_concurrency": 1, "spec_decode_acceptance_length": 2.01}',
    "plain_tok_s: 82\nspeculative_tok_s: 60\naccept_length: 2\nmodel: {name: x, num_layers: 61}\n",
)
PIECES = (
    "-1",
    "0",
    "1e400",
    "nan",
    "inf",
    "9" * 20,
    "9" * 400,
    "'",
    '"',
    *"{}[]()<>,:=\n",
    "None",
    "true",
    "é",
    "\x1b[",
)


def main() -> int:
    """Fuzz for a while."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    end = time.monotonic() + arguments.seconds
    failures: dict[str, list[str]] = {}
    count, slowest_s = 0, 0.0
    while time.monotonic() < end:
        given = [damaged(chance.choice(SEEDS), chance) for _ in range(chance.randint(1, 3))]
        start = time.monotonic()
        failure = diagnose(given)
        slowest_s = max(slowest_s, time.monotonic() - start)
        count += 1
        if failure:
            failures.setdefault(failure, given)
    print(f"{count} reports, slowest {slowest_s:.2f} s, {len(failures)} different failures")
    for failure, given in failures.items():
        print(f"\n{failure}\nfrom {given!r}")
    return 1 if failures else 0


def damaged(text: str, chance: random.Random) -> str:
    """A text with up to twelve insertions, deletions, copies and cuts."""
    for _ in range(chance.randint(0, 12)):
        place, other, kind = chance.randrange(len(text) + 1), chance.randrange(len(text) + 1), chance.random()
        if kind < 0.4:
            text = text[:place] + chance.choice(PIECES) + text[place + chance.randint(0, 6) :]
        elif kind < 0.6:
            text = text[:place] + text[place + chance.randint(0, 60) :]
        elif kind < 0.8:
            text = text[:place] + text[other : other + chance.randint(0, 200)] + text[place:]
        else:
            text = text[:place]
    return text


def diagnose(given: list[str]) -> str:
    """The last lines of a traceback, empty where all went well."""
    try:
        collected = collect_documents([document_of(text, f"text {n}") for n, text in enumerate(given)])
        answer_report(collected.facts, collected.evidence)
    except FastverifyError:
        return ""
    except Exception:  # noqa: BLE001 - whatever it is, it is what this script looks for
        return "\n".join(traceback.format_exc().splitlines()[-4:])
    return ""


if __name__ == "__main__":
    sys.exit(main())
