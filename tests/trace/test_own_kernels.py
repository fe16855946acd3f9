"""Profiler files of our kernels between two H200 (benchmarks/trace_collectives.py), read back with both ranks.

Kernel names carry the operation and the protocol, not the memory: push and host run one kernel, so that files tell them
apart by the time alone.
"""

import pytest
from typer.testing import CliRunner

from fastverify.cli.main import app
from fastverify.trace.breakdown import profile_of
from fastverify.trace.kind_names import KernelClass
from fastverify.trace.kinds import classify
from fastverify.trace.many import read_traces
from fastverify.trace.profile import PassRow, Profile
from fastverify.trace.spans import PassKind
from tests.trace.golden import CUTS

PATHS = [CUTS / "fastverify-h200" / f"all_reduce_2x_h200_rank{rank}.json.gz" for rank in (0, 1)]
NUM_PASSES = 5
# Two all-reduces per backend and layer, one of them fused with the norm.
NUM_ALL_REDUCES = {PassKind.PLAIN: 16, PassKind.VERIFY: 16, PassKind.DRAFT: 4}


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
    assert {one.algorithm for one in row.collectives} == {"one-shot"}


def test_protocols_are_those_of_the_launches(profile: Profile) -> None:
    """One row of 14 KB fused goes in lines over NVLink and by sentinel over host memory; all the rest by sentinel."""
    (plain,), (verify,) = profile.passes_of(PassKind.PLAIN), profile.passes_of(PassKind.VERIFY)
    assert protocols(plain) == {("sentinel", False): 8, ("lines", True): 4, ("sentinel", True): 4}
    assert protocols(verify) == {("sentinel", False): 8, ("sentinel", True): 8}


def test_transfer_is_the_shortest_over_the_ranks_and_the_rest_is_waiting(profile: Profile) -> None:
    total = NUM_PASSES * sum(NUM_ALL_REDUCES.values())
    for rank in profile.ranks:
        assert rank.num_matched_collectives == total
        assert rank.waiting_us + rank.transfer_us == pytest.approx(rank.totals.communication_us, rel=1e-6)
    assert profile.ranks[0].transfer_us == profile.ranks[1].transfer_us
    assert sum(rank.last_arrivals for rank in profile.ranks) == total
    (verify,) = profile.passes_of(PassKind.VERIFY)
    # 16 calls of 56 KB take 2.7 to 6.6 us each in the benchmark of the same machine.
    assert 16 * 2.5 < verify.transfer_us < 16 * 6.6


def test_the_start_of_a_profiler_names_no_straggler(profile: Profile) -> None:
    """Rank 1 spent 0.33 s in its first all-reduce until rank 0 recorded too; after that both wait in turn."""
    first, second = profile.ranks
    assert second.first_waiting_us > 0.99 * second.waiting_us
    assert not first.is_straggler
    assert not second.is_straggler
    assert second.waiting_us - second.first_waiting_us == pytest.approx(first.waiting_us, rel=0.2)


def test_compute_is_no_collective_and_a_graph_s_copies_are_memory(profile: Profile) -> None:
    (verify,) = profile.passes_of(PassKind.VERIFY)
    assert 5 * verify.exposed_communication_us < verify.compute_us
    assert profile.totals.memory_us > 0
    assert classify("memcpy32_post").kernel_class is KernelClass.MEMORY
    assert profile.coverage > 0.98
    assert profile.health == ()


def test_tables_name_fused_kernels_passes_and_the_first_collective() -> None:
    result = CliRunner().invoke(app, ["profile", *map(str, PATHS), "--markdown"])
    assert result.exit_code == 0
    assert "16 all-reduces (fastverify)" in result.stdout
    assert "wait for" not in result.stdout
    assert "one-shot sentinel, fused with norm | 8 |" in result.stdout
    assert "332 ms on rank 1 is in the first collective" in result.stdout


def protocols(row: PassRow) -> dict[tuple[str, bool], float]:
    return {(one.protocol, one.is_fused): one.count_per_pass for one in row.collectives}


def count(row: PassRow, *, is_fused: bool) -> float:
    return sum(one.count_per_pass for one in row.collectives if one.is_fused == is_fused)
