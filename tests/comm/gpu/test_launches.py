"""What the benchmark calls a launch: two that differ never look alike."""

from itertools import product

import pytest

pytest.importorskip("torch")

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, candidate_launches
from fastverify.comm.gpu.launches import launch_text


def test_words_for_what_is_not_as_usual() -> None:
    assert launch_text(Launch(Protocol.LINES, 8, 64)) == "ONE_SHOT LINES 8x64"
    full = Launch(Protocol.SENTINEL, 8, 64, 2, pause_ns=100, cluster=4, has_scouts=True, algorithm=Algorithm.TWO_SHOT)
    assert launch_text(full) == "TWO_SHOT SENTINEL 8x64 units 2 pause 100 cluster 4 scouts"


@pytest.mark.parametrize(("fabric", "world_size", "fused"), list(product(("push", "host"), (2, 4), (False, True))))
def test_candidates_have_different_words(fabric: str, world_size: int, fused: bool) -> None:
    for num_bytes in (4096, 57_344, 262_144, 1 << 20):
        texts = [launch_text(launch) for launch in candidate_launches(fabric, world_size, num_bytes, fused=fused)]
        assert len(set(texts)) == len(texts)
