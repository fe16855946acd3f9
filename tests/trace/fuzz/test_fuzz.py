"""A few seconds of the fuzzer; scripts/fuzz_traces.py runs it for longer and on larger files."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from tests.trace.fuzz.check import check_file
from tests.trace.fuzz.mutate import MUTATIONS, mutate
from tests.trace.golden import CUTS
from tests.trace.kineto_text import make_text

SECONDS = 4.0
SEEDS = [make_text(), gzip.decompress((CUTS / "vllm-cpu-eagle3" / "rank0.json.gz").read_bytes())]


@pytest.mark.parametrize("first_seed", [0, 10_000])
def test_no_damage_is_fatal(first_seed: int, tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    end = time.monotonic() + SECONDS / 2
    seed = first_seed
    while time.monotonic() < end:
        path.write_bytes(mutate(SEEDS[seed % len(SEEDS)], seed))
        check_file(path)
        seed += 1
    assert seed - first_seed > len(MUTATIONS), "too slow to have tried anything"
