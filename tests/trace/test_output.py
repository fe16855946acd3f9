import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fastverify.trace.breakdown import Analysis, analyse
from fastverify.trace.compare import compare
from fastverify.trace.many import read_traces
from fastverify.trace.output import tables
from fastverify.trace.output.layout import MAX_GAPS_SHARE, lay_out
from fastverify.trace.output.markdown import render_comparison_markdown, render_markdown
from fastverify.trace.output.page import render_page
from fastverify.trace.output.words import segments
from fastverify.trace.verdict import main_row
from fastverify.trace.work import work_of
from tests.trace.golden import CUTS
from tests.trace.make import GEMM, Kernel, Mark, make_trace


@pytest.fixture(scope="module")
def eagle3() -> Analysis:
    return analyse(read_traces([CUTS / "vllm-h200-eagle3"]))


class Page(HTMLParser):
    """Counts elements and refuses ones that are closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.boxes: list[str] = []
        self.numbers: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "rect":
            self.boxes.append(dict(attrs).get("class") or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "rect":
            self.boxes.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "text" and data.isdigit():
            self.numbers.append(data)


def test_the_page_draws_every_collective_of_both_ranks_and_needs_no_network(eagle3: Analysis) -> None:
    text = render_page(eagle3)
    page = Page()
    page.feed(text)
    assert page.open == []
    assert "script" not in page.tags
    assert not re.search(r"https?://|url\(|@import", text)
    assert page.boxes.count("collective") >= 2 * 66
    assert {str(number) for number in range(1, 67)} <= set(page.numbers)
    assert eagle3.profile.verdict in text


def test_names_of_kernels_cannot_write_into_the_page() -> None:
    evil = "<script>alert(1)</script>"
    trace = make_trace([Kernel(evil, 0, 5, 1), Kernel(GEMM, 5, 5, 2)], [Mark("step[DECODE bs=1]", 0, 5)])
    assert evil not in render_page(analyse([trace]))
    outside = make_trace([Kernel("a|b", 0, 5, 9), Kernel(GEMM, 9, 5, 2)], [Mark("step[DECODE bs=1]", 0, 5)])
    assert "`a\\|b`" in render_markdown(analyse([outside]).profile)


def test_markdown_is_tables_of_equal_width(eagle3: Analysis) -> None:
    text = render_markdown(eagle3.profile)
    assert "**A verify pass (batch 1, 4 rows)" in text
    assert "| 3 x verify, batch 1, 4 rows |" in text
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1
    comparison = render_comparison_markdown(compare(eagle3.profile, eagle3.profile))
    assert "| exposed comm |" in comparison


def test_tables_fit_a_terminal_of_80_columns(eagle3: Analysis) -> None:
    profile, row = eagle3.profile, main_row(eagle3.profile)
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        for one in (
            tables.passes_table(profile),
            tables.ranks_table(profile),
            tables.collectives_table(row),
            tables.bar(row),
        ):
            console.print(one)
    text = capture.get()
    assert "…" not in text
    assert "65 AR" in text
    assert "0 straggler" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_bar_is_the_wall_span(eagle3: Analysis) -> None:
    for row in eagle3.profile.passes:
        if row.count == 1:
            assert sum(us for _, us in segments(row)) == pytest.approx(row.wall_us, rel=1e-6)


kernels = st.lists(
    st.builds(Kernel, st.just(GEMM), st.integers(0, 5000), st.integers(1, 40), st.just(0.0)), min_size=1, max_size=40
)


@given(kernels)
def test_layout_keeps_order_and_lengths_and_shortens_only_idle_time(rows: list[Kernel]) -> None:
    work = work_of(make_trace(rows))
    layout = lay_out([work], [np.arange(len(work))], [0])
    assert all(box.end_us - box.start_us == pytest.approx(box.duration_us) for box in layout.boxes)
    starts = [box.start_us for box in layout.boxes]
    assert starts == sorted(starts)
    assert starts[0] == 0
    busy_us = layout.length_us - sum(cut.end_us - cut.start_us for cut in layout.cuts)
    assert sum(cut.end_us - cut.start_us for cut in layout.cuts) <= max(MAX_GAPS_SHARE * busy_us * 1.01, 0.1)
    removed_us = sum(cut.idle_us - (cut.end_us - cut.start_us) for cut in layout.cuts)
    span_us = (work.end_ns.max() - work.start_ns.min()) / 1000
    assert layout.length_us + removed_us == pytest.approx(span_us)


def test_kernels_without_a_length_have_a_page_without_a_drawing() -> None:
    mark = Mark("execute_context_0(0)_generation_1(4)", 0, 0)
    text = render_page(analyse([make_trace([Kernel(GEMM, 0, 0, 0)], [mark])]))
    assert "<rect" not in text


def test_every_output_tells_what_the_first_collective_waited() -> None:
    analysis = analyse(read_traces([CUTS / "fastverify-h200"]))
    for text in (render_page(analysis), render_markdown(analysis.profile)):
        assert "332 ms on rank 1 is in the first collective" in text
