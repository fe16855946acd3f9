from collections import Counter

import pytest

from fastverify.trace.passes import find_passes
from fastverify.trace.spans import PassKind
from tests.trace.make import ALL_GATHER, ALL_REDUCE, COPY, GEMM, SAMPLE, Kernel, Mark, layers, make_trace

VERIFY = "execute_context_0(0)_generation_1(4)"
PLAIN = "execute_context_0(0)_generation_1(1)"


def kinds(trace) -> list[tuple[str, int]]:
    return [(one.kind.value, len(one.work)) for one in find_passes(trace).passes]


def test_a_pass_owns_what_its_range_launched_however_late_it_ran() -> None:
    kernels = [
        Kernel(GEMM, 500, 5, launch_us=10),
        Kernel(GEMM, 600, 5, launch_us=30),
        Kernel(GEMM, 15, 5, launch_us=29),
    ]
    found = find_passes(make_trace(kernels, [Mark("step[DECODE bs=1]", 5, 20), Mark("step[DECODE bs=1]", 25, 40)]))
    starts = [[int(found.work.start_ns[i]) // 1000 for i in one.work] for one in found.passes]
    assert sorted(starts) == [[15, 600], [500]]
    assert found.coverage == 1.0


def test_launches_of_another_thread_are_not_of_the_pass() -> None:
    kernels = [Kernel(GEMM, 50, 5, launch_us=10, thread=0), Kernel(GEMM, 60, 5, launch_us=11, thread=1)]
    found = find_passes(make_trace(kernels, [Mark("step[DECODE bs=1]", 5, 20)]))
    assert len(found.passes[0].work) == 1
    assert found.coverage == pytest.approx(0.5)


def test_a_training_step_holds_the_launches_of_every_thread() -> None:
    kernels = [Kernel(GEMM, 50, 5, launch_us=10, thread=0), Kernel(GEMM, 60, 5, launch_us=11, thread=1)]
    assert kinds(make_trace(kernels, [Mark("ProfilerStep#3", 5, 20)])) == [("other", 2)]


def test_one_graph_launch_owns_all_its_kernels() -> None:
    trace = make_trace(layers(3, 900, launch_us=12), [Mark(VERIFY, 10, 14)])
    found = find_passes(trace)
    assert [(one.kind, one.batch, one.rows) for one in found.passes] == [(PassKind.VERIFY, 1, 4)]
    assert int(found.work.is_all_reduce[found.passes[0].work].sum()) == 6


def test_device_pieces_of_an_annotation_are_not_passes() -> None:
    marks = [Mark(VERIFY, 10, 14), *(Mark(VERIFY, 900 + 4 * i, 904 + 4 * i, on_device=True) for i in range(3))]
    assert kinds(make_trace(layers(3, 900, launch_us=12), marks)) == [("verify", 12)]


def between_two_ranges(with_sampling: bool) -> list[Kernel]:
    head = [Kernel(GEMM, 20, 1, 20), Kernel(ALL_GATHER, 21, 1, 21)]
    head += [Kernel(SAMPLE, 22, 1, 22)] if with_sampling else []
    draft = [Kernel(GEMM, 24, 1, 24), *layers(1, 25, launch_us=25), Kernel(ALL_GATHER, 29, 1, 26)]
    return [*layers(2, 0, launch_us=1), *head, *draft, *layers(2, 100, launch_us=101)]


@pytest.mark.parametrize("with_sampling", [True, False])
def test_work_between_two_ranges_of_vllm_is_sampling_then_drafting(with_sampling: bool) -> None:
    marks = [Mark(VERIFY, 0, 10), Mark(VERIFY, 100, 110)]
    found = find_passes(make_trace(between_two_ranges(with_sampling), marks))
    counted = [(one.kind.value, int(found.work.is_collective[one.work].sum())) for one in found.passes]
    assert counted == [("verify", 5), ("draft", 3), ("verify", 4)]
    assert found.passes[1].batch == 1


def test_a_tail_without_a_draft_model_is_sampling() -> None:
    kernels = [*layers(2, 0, launch_us=1), Kernel(SAMPLE, 20, 1, 20), *layers(2, 100, launch_us=101)]
    assert kinds(make_trace(kernels, [Mark(PLAIN, 0, 10), Mark(PLAIN, 100, 110)])) == [("plain", 9), ("plain", 8)]


def test_scopes_of_vllm_decide_over_kernel_names() -> None:
    scopes = [Mark("gpu_model_runner: sample", 19, 23), Mark("gpu_model_runner: draft", 23.5, 40)]
    kernels = [*between_two_ranges(True), Kernel(COPY, 45, 1, 45)]
    found = find_passes(make_trace(kernels, [Mark(VERIFY, 0, 10), *scopes, Mark(VERIFY, 100, 110)]))
    assert [(one.kind.value, len(one.work)) for one in found.passes] == [("verify", 11), ("draft", 6), ("verify", 8)]
    assert found.coverage < 1.0


def test_the_prefill_of_a_draft_model_is_drafting() -> None:
    marks = [Mark("draft_extend", 0, 20), Mark("step[EXTEND bs=1 toks=128]", 2, 18)]
    assert kinds(make_trace(layers(1, 30, launch_us=5), marks)) == [("draft", 4)]


def test_an_outer_range_gives_way_to_the_inner_one() -> None:
    outer = "execute_32_context_0(sq0sk0)_generation_32(sq32sk9)"
    kernels = [Kernel(COPY, 1, 1, launch_us=1), *layers(4, 30, launch_us=15)]
    found = find_passes(make_trace(kernels, [Mark(outer, 0, 40), Mark("step[DECODE bs=32]", 10, 38)]))
    assert [(one.kind.value, len(one.work), one.batch) for one in found.passes] == [("plain", 16, 32)]


def test_draft_and_target_of_the_same_name_are_told_apart_by_layers() -> None:
    marks = [Mark("step[DECODE bs=8]", 10 * i, 10 * i + 5) for i in range(4)]
    kernels = [k for i in range(4) for k in layers(8 if i % 2 else 1, 100 * i, launch_us=10 * i + 1)]
    assert kinds(make_trace(kernels, marks)) == [("draft", 4), ("plain", 32), ("draft", 4), ("plain", 32)]


def test_a_draft_takes_the_batch_of_its_target() -> None:
    marks = [
        Mark("draft", 0, 5), Mark("step[TARGET_VERIFY bs=1]", 10, 15), Mark("draft_extend", 20, 25),
        Mark("draft", 30, 35), Mark("step[TARGET_VERIFY bs=4]", 40, 45), Mark("draft_extend", 50, 55),
    ]  # fmt: skip
    kernels = [k for i in range(6) for k in layers(1, 100 * i, launch_us=10 * i + 1)]
    assert [one.batch for one in find_passes(make_trace(kernels, marks)).passes] == [1, 1, 1, 4, 4, 4]


def test_graphs_without_annotations_are_draft_and_verify_by_layers() -> None:
    kernels = [k for i in range(6) for k in layers(1 if i % 3 else 8, 100 * i, launch_us=10 * i + 1)]
    found = find_passes(make_trace(kernels))
    assert found.rule == "graph launches and layer counts"
    assert [(one.kind.value, len(one.work)) for one in found.passes] == [("verify", 32), ("draft", 8)] * 2


def test_graphs_of_one_size_without_annotations_are_plain() -> None:
    kernels = [k for i in range(3) for k in layers(8, 100 * i, launch_us=10 * i + 1)]
    assert kinds(make_trace(kernels)) == [("plain", 32)] * 3


def test_eager_kernels_without_annotations_are_cut_at_the_gather_of_logits() -> None:
    kernels = []
    for i in range(4):
        kernels += layers(4, 100 * i, launch_us=100 * i, is_graph=False)
        kernels.append(Kernel(ALL_GATHER, 100 * i + 50, 1, 100 * i + 50))
    found = find_passes(make_trace(kernels))
    assert found.rule == "repeated kernel sequences and layer counts"
    assert [(one.kind.value, len(one.work)) for one in found.passes] == [("plain", 17)] * 4


def test_layers_alone_are_not_mistaken_for_passes() -> None:
    found = find_passes(make_trace(layers(24, 0, launch_us=0, is_graph=False)))
    assert found.passes == ()
    assert found.rule.startswith("none")


def test_kernels_of_a_lost_launch_are_counted_in_no_pass() -> None:
    kernels = [Kernel(GEMM, 50, 3, launch_us=10), Kernel(ALL_REDUCE, 60, 1, launch_us=None)]
    found = find_passes(make_trace(kernels, [Mark("step[DECODE bs=1]", 5, 20)]))
    assert Counter(len(one.work) for one in found.passes) == {1: 1}
    assert found.coverage == pytest.approx(0.75)
