"""Profiler files of our kernels between two GPUs (benchmarks/trace_collectives.py) read back, once they are there."""

import pytest

from fastverify.trace.breakdown import profile_of
from fastverify.trace.many import read_traces
from fastverify.trace.profile import PassRow, Profile
from fastverify.trace.spans import PassKind
from tests.trace.golden import CUTS

PATHS = [CUTS / "fastverify-h200" / f"all_reduce_2x_h200_rank{rank}.json.gz" for rank in (0, 1)]
NUM_PASSES = 5
# Two all-reduces per backend and layer, one of them fused with the norm.
NUM_ALL_REDUCES = {PassKind.PLAIN: 16, PassKind.VERIFY: 16, PassKind.DRAFT: 4}

pytestmark = pytest.mark.skipif(not PATHS[0].exists(), reason="no profiler file of our kernels has been recorded yet")


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profile_of(read_traces(PATHS))


@pytest.mark.parametrize("kind", NUM_ALL_REDUCES)
def test_every_all_reduce_of_a_pass_is_found(profile: Profile, kind: PassKind) -> None:
    (row,) = profile.passes_of(kind)
    assert (row.count, row.all_reduces_per_pass, row.collectives_per_pass) == (
        NUM_PASSES,
        NUM_ALL_REDUCES[kind],
        NUM_ALL_REDUCES[kind],
    )
    assert row.backends == ("fastverify",)
    assert row.graph_launches_per_pass == (0 if kind is PassKind.DRAFT else 1)
    assert count(row, is_fused=True) == count(row, is_fused=False) == NUM_ALL_REDUCES[kind] / 2
    assert {one.algorithm for one in row.collectives} <= {"one-shot", "two-shot"}
    assert all(one.protocol in ("lines", "sentinel", "flags") for one in row.collectives)


def test_ranks_are_matched_and_compute_is_no_collective(profile: Profile) -> None:
    total = NUM_PASSES * sum(NUM_ALL_REDUCES.values())
    assert [rank.num_matched_collectives for rank in profile.ranks] == [total, total]
    assert profile.totals.compute_us > 0
    assert profile.coverage > 0.98


def count(row: PassRow, *, is_fused: bool) -> float:
    return sum(one.count_per_pass for one in row.collectives if one.is_fused == is_fused)
