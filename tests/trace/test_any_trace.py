"""Whatever a file holds, passes, costs and every output answer, and their numbers fit together."""

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fastverify.trace.breakdown import analyse
from fastverify.trace.compare import compare
from fastverify.trace.output import tables
from fastverify.trace.output.markdown import render_comparison_markdown, render_markdown
from fastverify.trace.output.page import render_page
from fastverify.trace.profile import Profile
from tests.trace.make import ALL_GATHER, ALL_REDUCE, ATTENTION, COPY, GEMM, SAMPLE, Kernel, Mark, make_trace

NAMES = [
    "execute_context_0(0)_generation_1(4)", "execute_context_1(9)_generation_0(0)", "draft", "draft_extend",
    "step[DECODE bs=1]", "step[TARGET_VERIFY bs=2]", "ProfilerStep#1", "gpu_model_runner: draft",
    "gpu_model_runner: sample", "nccl:all_reduce",
]  # fmt: skip
times = st.integers(0, 300)
kernels = st.lists(
    st.builds(
        Kernel,
        st.sampled_from([GEMM, ALL_REDUCE, ALL_GATHER, ATTENTION, SAMPLE, COPY, "ncclDevKernel_Generic"]),
        times,
        st.integers(0, 40),
        st.none() | times,
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=40,
)
marks = st.lists(
    st.tuples(st.sampled_from(NAMES), times, st.integers(0, 100), st.integers(0, 1), st.booleans()).map(
        lambda m: Mark(m[0], m[1], m[1] + m[2], m[3], m[4])
    ),
    max_size=12,
)
traces = st.builds(make_trace, kernels, marks, st.integers(0, 2), st.just(2))


@settings(max_examples=30, deadline=None)
@given(st.lists(traces, min_size=1, max_size=3))
def test_any_trace_has_an_answer(ranks) -> None:
    analysis = analyse(ranks)
    profile = analysis.profile
    for passes in analysis.passes:
        owned = [i for one in passes.passes for i in one.work.tolist()]
        assert len(owned) == len(set(owned)), "a row of work is in one pass at most"
        assert 0 <= passes.coverage <= 1 + 1e-9
    for part in (profile.totals, *profile.passes):
        assert part.exposed_communication_us <= part.communication_us + 1e-6
        assert part.busy_us + 1e-6 >= max(part.compute_us, part.communication_us)
    console = Console(width=80)
    with console.capture():
        for table in (tables.passes_table(profile), tables.ranks_table(profile), tables.health_table(profile)):
            console.print(table)
    assert render_page(analysis).endswith("</html>")
    assert profile.verdict in render_markdown(profile)
    assert render_comparison_markdown(compare(profile, profile))
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
