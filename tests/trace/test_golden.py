"""Numbers of real files, found before this code was written: by hand counts and by a separate script."""

from collections import Counter

import pytest

from fastverify.trace.breakdown import profile_of
from fastverify.trace.many import read_traces
from fastverify.trace.passes import find_passes
from fastverify.trace.profile import Profile
from fastverify.trace.spans import PassKind
from tests.trace.golden import CUTS, whole

# Collectives, then microseconds: communication, compute, exposed communication, busy, idle, span.
TOTALS = {
    "vllm-b200-tp8-prefill-rank0.json.gz": (74, 2141.5, 8652.1, 2141.5, 11596.5, 72890.7, 84487.2),
    "a100-ddp-nccl-rank0.json.gz": (21, 46876.5, 115655.8, 39559.5, 157500.1, 503050.9, 660551.0),
    "v100-df-index-rank1.json.gz": (2020, 357343, 620516, 357343, 1000613, 732352, 1732965),
    "a100-dlrm-control-rank3.json.gz": (60, 163535, 281336, 87921, 388587, 76007, 464594),
    "v100-dlrm-8ranks-rank0.pt.trace.json.gz": (8, 5798, 1034, 5537, 6590, 6419, 13009),
}


def profile(*paths) -> Profile:
    return profile_of(read_traces(paths))


@pytest.mark.parametrize("name", TOTALS)
def test_totals_of_whole_files(name: str) -> None:
    totals = profile(*whole(name)).totals
    found = (
        totals.num_collectives, totals.communication_us, totals.compute_us, totals.exposed_communication_us,
        totals.busy_us, totals.idle_us, totals.span_us,
    )  # fmt: skip
    assert found == pytest.approx(TOTALS[name], rel=1e-3)


def test_b200_prefill_counts_what_has_no_nccl_in_its_name() -> None:
    found = profile(*whole("vllm-b200-tp8-prefill-rank0.json.gz"))
    (row,) = found.passes
    assert (row.kind, row.batch, row.rows, row.count) == (PassKind.PREFILL, 1, 888, 1)
    assert (row.all_reduces_per_pass, row.collectives_per_pass) == (73, 74)
    assert row.exposed_communication_us == row.communication_us == pytest.approx(2141.5, rel=1e-4)
    multimem = row.collectives[0]
    assert (multimem.backend, multimem.protocol) == ("symmetric_memory", "multimem")
    assert (multimem.min_us, multimem.median_us, multimem.max_us) == pytest.approx((24.7, 27.4, 223.2), abs=0.05)
    gather = row.collectives[1]
    assert gather.bytes_source == "file"
    assert found.coverage == 1.0


def test_kimi_shape_makes_123_all_reduces_in_each_of_11_passes() -> None:
    (trace,) = read_traces(whole("vllm-h200-kimi-ngram-nop2p-rank0.pt.trace.json.gz"))
    found = find_passes(trace)
    assert [int(found.work.is_all_reduce[one.work].sum()) for one in found.passes] == [123] * 11
    assert Counter(one.kind.value for one in found.passes) == {"prefill": 2, "plain": 2, "verify": 7}
    assert found.coverage == pytest.approx(1.0, abs=1e-3)


def test_eagle3_verify_passes_and_draft_rounds_on_two_ranks() -> None:
    found = profile(*whole(*(f"vllm-h200-eagle3-nvlink-rank{rank}.pt.trace.json.gz" for rank in (0, 1))))
    verify = found.passes_of(PassKind.VERIFY)
    assert [(row.batch, row.rows, row.count, row.all_reduces_per_pass) for row in verify] == [
        (1, 4, 7, 2 * 32 + 1),
        (4, 16, 5, 2 * 32 + 1),
    ]
    assert {(row.all_reduces_min, row.all_reduces_max) for row in verify} == {(65, 65)}
    drafts = found.passes_of(PassKind.DRAFT)
    assert [(row.count, row.all_reduces_per_pass, row.collectives_per_pass) for row in drafts] == [
        (8, 9, 12),
        (6, 9, 12),
    ]
    assert sum(row.count * row.all_reduces_per_pass for row in found.passes) == 1036
    assert [rank.num_matched_collectives for rank in found.ranks] == [1036 + 56] * 2
    assert [rank.is_straggler for rank in found.ranks] == [True, False]


def test_sglang_cycle_is_draft_verify_and_extend() -> None:
    found = profile(*whole("sglang-h200-tp1-eagle3-chain.trace.json.gz"))
    assert [(row.batch, row.count, row.graph_launches_per_pass) for row in found.passes_of(PassKind.VERIFY)] == [
        (1, 6, 1),
        (4, 4, 1),
    ]
    assert [row.count for row in found.passes_of(PassKind.DRAFT, "draft")] == [6, 4]
    assert sum(row.count for row in found.passes_of(PassKind.DRAFT, "draft_extend")) == 12
    assert found.coverage > 0.98


def test_one_hip_graph_is_one_decoding_pass() -> None:
    found = profile(*whole("sglang-mi300-decode.json.gz"))
    (row,) = found.passes
    assert (row.kind, row.batch, row.graph_launches_per_pass) == (PassKind.PLAIN, 32, 1)
    assert row.wall_us < 11_000
    assert found.coverage == pytest.approx(0.992, abs=2e-3)


def test_vllm_on_cpu_makes_10_collectives_per_verify_pass_and_12_per_draft_round() -> None:
    found = profile(*whole("vllm-cpu-tp2-eagle3/rank0.pt.trace.json.gz", "vllm-cpu-tp2-eagle3/rank1.pt.trace.json.gz"))
    (verify,), (draft,) = found.passes_of(PassKind.VERIFY), found.passes_of(PassKind.DRAFT)
    assert (verify.count, verify.collectives_per_pass, verify.all_reduces_per_pass) == (62, 10, 9)
    assert (draft.count, draft.collectives_per_pass, draft.all_reduces_per_pass) == (64, 12, 9)
    assert verify.backends == ("shared_memory",)


def test_dlrm_straggler_of_four_ranks() -> None:
    found = profile(*whole(*(f"v100-dlrm-8ranks-rank{rank}.pt.trace.json.gz" for rank in range(4))))
    assert [rank.is_straggler for rank in found.ranks] == [False, False, True, False]
    assert {rank.num_matched_collectives for rank in found.ranks} == {8}
    communication = {rank.rank: rank.waiting_us + rank.transfer_us for rank in found.ranks}
    assert communication[0] == pytest.approx(5798, rel=1e-3)


@pytest.mark.parametrize(
    ("folder", "kind", "count", "all_reduces", "collectives"),
    [
        ("vllm-h200-eagle3", PassKind.VERIFY, 3, 65, 66),
        ("vllm-h200-eagle3", PassKind.DRAFT, 4, 9, 12),
        ("vllm-h200-plain", PassKind.PLAIN, 4, 65, 66),
        ("vllm-h200-ngram", PassKind.VERIFY, 2, 123, 124),
        ("sglang-h200-eagle3", PassKind.VERIFY, 3, 0, 0),
        ("vllm-cpu-eagle3", PassKind.VERIFY, 3, 9, 10),
        ("vllm-cpu-eagle3", PassKind.DRAFT, 3, 9, 12),
    ],
)
def test_cuts(folder: str, kind: PassKind, count: int, all_reduces: int, collectives: int) -> None:
    rows = profile(CUTS / folder).passes_of(kind)
    if folder.startswith("sglang"):
        assert [row.phase for row in profile(CUTS / folder).passes] == ["draft", "", "draft_extend"]
    assert sum(row.count for row in rows) == count
    assert {(row.all_reduces_per_pass, row.collectives_per_pass) for row in rows} == {(all_reduces, collectives)}
