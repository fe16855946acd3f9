import pytest

from fastverify.trace.breakdown import profile_of
from fastverify.trace.compare import compare
from fastverify.trace.many import read_traces
from tests.trace.golden import CUTS
from tests.trace.make import GEMM, Kernel, Mark, make_trace


def decode(name: str, num_kernels: int):
    kernels = [Kernel(GEMM, 10 * i, 10, launch_us=1) for i in range(num_kernels)]
    return profile_of([make_trace(kernels, [Mark(name, 0, 5)])])


def test_plain_and_verify_passes_of_a_batch_are_partners() -> None:
    found = compare(decode("step[DECODE bs=4]", 3), decode("step[TARGET_VERIFY bs=4]", 4))
    (one,) = found.matched
    assert (one.before, one.after) == ("plain, batch 4, 4 rows", "verify, batch 4")
    assert one.change("wall_us").ratio == pytest.approx(4 / 3)
    assert one.change("all_reduces_per_pass").ratio is None
    assert found.verdict.startswith("plain, batch 4, 4 rows -> verify, batch 4: 30 us -> 40 us (+33%)")


def test_passes_without_a_partner_are_listed() -> None:
    found = compare(decode("step[DECODE bs=4]", 3), decode("step[DECODE bs=8]", 3))
    assert (found.matched, found.only_before, found.only_after) == (
        (),
        ("plain, batch 4, 4 rows",),
        ("plain, batch 8, 8 rows",),
    )
    assert "No pass" in found.verdict


def test_a_profile_against_itself_changes_nothing() -> None:
    profile = profile_of(read_traces([CUTS / "vllm-h200-eagle3"]))
    found = compare(profile, profile)
    assert len(found.matched) == len(profile.passes)
    assert {change.ratio for one in found.matched for change in one.changes} <= {1.0, None}
    assert found.only_before == found.only_after == ()


def test_decoding_comes_first() -> None:
    before = profile_of(read_traces([CUTS / "vllm-h200-plain"]))
    after = profile_of(read_traces([CUTS / "vllm-h200-eagle3"]))
    found = compare(before, after)
    assert [one.name for one in found.matched] == ["plain, batch 1, 1 row -> verify, batch 1, 4 rows"]
    assert found.matched[0].change("all_reduces_per_pass").ratio == 1.0
    assert found.only_after == ("prefill, batch 1, 32 rows", "draft, batch 1")
