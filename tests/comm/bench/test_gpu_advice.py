from dataclasses import replace

from fastverify.comm.bench.gpu_advice import advise, pass_sizes
from fastverify.comm.bench.gpu_rows import GpuBenchRow, fastest

KIMI_ROW_BYTES = 7168 * 2


def row(backend: str, num_bytes: int, us: float | None, **changes: object) -> GpuBenchRow:
    setting = "default" if backend == "nccl" else None
    made = GpuBenchRow(backend, num_bytes, 2, "bfloat16", False, "graph", setting, median_us=us, correct=us is not None)
    return replace(made, **changes)


def test_passes_of_kimi_have_the_sizes_that_people_name() -> None:
    passes = pass_sizes(61, KIMI_ROW_BYTES, batch=1, k=11)
    assert [(one.label, one.num_bytes // 1024) for one in passes] == [
        ("plain pass, batch 1", 14),
        ("verify pass of 4 tokens, batch 1", 56),
        ("verify pass of 12 tokens, batch 1", 168),
    ]
    assert {(one.num_sums, one.num_fused) for one in passes} == {(123, 122)}
    assert len(pass_sizes(61, KIMI_ROW_BYTES, batch=1, k=3)) == 2
    assert pass_sizes(61, KIMI_ROW_BYTES, batch=8, k=3)[0].num_bytes == 8 * KIMI_ROW_BYTES


def test_the_saving_is_count_times_difference_to_ncclls_default() -> None:
    passes = pass_sizes(61, KIMI_ROW_BYTES, batch=1, k=3)[:1]
    rows = [
        row("nccl", 14336, 12.0),
        row("nccl", 14336, 8.0, setting="ll"),
        row("push", 14336, 2.0, launch="ONE_SHOT LINES 16x256"),
        row("push", 14336, 1.0, mode="eager"),
        row("vllm", 14336, 0.5, correct=False),
        row("push", 14336, 4.0, fused=True),
        row("nccl", 14336, 24.0, fused=True),
    ]
    plain, fused = advise(rows, passes, "graph")
    assert (plain.way, plain.count, plain.saving_ms) == ("push", 123, 123 * 10.0 / 1000)
    assert plain.launch == "ONE_SHOT LINES 16x256"
    assert (fused.way, fused.count, fused.saving_ms) == ("push", 122, 122 * 20.0 / 1000)
    assert "saves 1.23 ms per pass against NCCL's default (12.0 us)" in plain.sentence()


def test_a_setting_may_win_and_nothing_is_said_without_the_baseline() -> None:
    passes = pass_sizes(2, 1024, batch=1, k=3)[:1]
    (best,) = advise([row("nccl", 1024, 9.0), row("nccl", 1024, 6.0, setting="ll")], passes, "graph")
    assert best.way == "nccl:ll"
    (same,) = advise([row("nccl", 1024, 9.0)], passes, "graph")
    assert same.sentence().endswith("nothing to gain")
    (alone,) = advise([row("push", 1024, 2.0)], passes, "graph")
    assert alone.saving_ms is None
    assert alone.sentence().endswith("NCCL's default was not measured")
    assert advise([row("push", 1024, None, reason="no")], passes, "graph") == []


def test_the_fastest_is_correct() -> None:
    rows = [row("push", 1, 2.0), row("vllm", 1, 1.0, correct=False), row("nccl", 1, None)]
    assert fastest(rows) is rows[0]
    assert fastest(rows[1:]) is None
