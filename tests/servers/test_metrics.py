import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.engine.http.metrics_page import metrics_page
from fastverify.engine.stats import CycleKey, EngineStats, EngineTotals
from fastverify.errors import ServerError
from fastverify.servers.metrics import (
    MetricsPage,
    SpecStats,
    add_pages,
    parse_metrics,
    read_collectives,
    read_cycles,
    read_spec_stats,
)


def engine_page() -> MetricsPage:
    """What the built-in server writes after a few cycles, read back."""
    totals = EngineTotals()
    for rows in (4, 8):
        totals.add_cycle(CycleKey("speculative", 1, rows), {"draft": 1_000_000, "verify_compute": 2_000_000}, 5_000_000)
    totals.add_cycle(CycleKey("plain", 2, 2), {"plain_compute": 3_000_000}, 4_000_000)
    for num_correct in (3, 1, 0):
        totals.speculation.add(num_proposed_drafts=3, num_correct_drafts=num_correct)
    stats = EngineStats(
        cycles=[cycle.to_dict(key) for key, cycle in totals.cycles.items()],
        collectives=[
            {"phase": "verify", "op": "all_reduce", "count": 34, "bytes": 3400, "seconds": 0.5},
            {"phase": "verify", "op": "all_gather", "count": 2, "bytes": 20, "seconds": 0.1},
            {"phase": "draft", "op": "all_reduce", "count": 9, "bytes": 90, "seconds": 0.1},
        ],
        speculation=totals.speculation.to_dict(),
        passes={"verify": 2, "plain": 1},
        prefill_s=0.25,
        tokens={"prompt": 7, "output": 8},
        num_running=1,
        num_waiting=2,
    )
    return parse_metrics(metrics_page(stats.to_dict(), {"length": 4}).decode())


def test_the_built_in_page_reads_back_as_it_was_written() -> None:
    page = engine_page()
    assert read_spec_stats(page) == SpecStats(3, 9, 4, (2, 1, 1))
    assert read_spec_stats(page).accept_length == pytest.approx(1 + 4 / 3)
    (cycle,) = read_cycles(page, "speculative")
    assert (cycle.batch, cycle.num_cycles) == (1, 2)
    assert cycle.total_s == pytest.approx(0.010)
    assert cycle.phases_s["host"] == pytest.approx(0.004)
    assert [(c.batch, c.num_cycles) for c in read_cycles(page, "plain")] == [(2, 1)]
    # Without passes of its phase a collective has no count per pass.
    collectives = {(c.phase, c.op): c for c in read_collectives(page)}
    assert set(collectives) == {("verify", "all_reduce"), ("verify", "all_gather")}
    assert collectives["verify", "all_reduce"].count / collectives["verify", "all_reduce"].num_passes == 17
    assert page.by_label("fastverify:request_total", "finish_reason")["length"] == 4
    assert [page.total(f"fastverify:requests_{state}") for state in ("running", "waiting")] == [1, 2]
    assert page.total("fastverify:prefill_seconds_total") == 0.25


def page_of(count: float, gauge: float = 0.0) -> MetricsPage:
    return parse_metrics(f"# TYPE a_total counter\na_total {count}\n# TYPE g gauge\ng {gauge}\n")


@given(counts=st.lists(st.integers(0, 10**9), min_size=2, max_size=6).map(sorted))
def test_windows_between_pages_sum_to_the_whole(counts: list[int]) -> None:
    pages = [page_of(count) for count in counts]
    windows = [later.since(earlier) for earlier, later in zip(pages, pages[1:], strict=False)]
    assert add_pages(windows).total("a_total") == counts[-1] - counts[0]


def test_gauges_are_as_they_are_and_new_samples_count_from_zero() -> None:
    window = page_of(5, gauge=3).since(page_of(2, gauge=9))
    assert (window.total("a_total"), window.total("g")) == (3, 3)
    assert page_of(5).since(MetricsPage({}, frozenset())).total("a_total") == 5


def test_a_counter_that_fell_is_a_restart() -> None:
    with pytest.raises(ServerError, match="a_total fell: the server was restarted"):
        page_of(1).since(page_of(2))


def test_text_that_is_no_page_is_named() -> None:
    with pytest.raises(ServerError, match="Prometheus text format"):
        parse_metrics("<html>404</html>")


def test_labels_are_matched_in_part_and_summed() -> None:
    page = parse_metrics('x{a="1",b="2"} 3\nx{a="1",b="3"} 4\nx{a="2",b="2"} 5\n')
    assert page.total("x", a="1") == 7
    assert page.by_label("x", "b", a="1") == {"2": 3, "3": 4}
