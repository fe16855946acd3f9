"""What follows from a link report: collapse, hints, tables, facts for the latency model."""

import json
from dataclasses import replace

import pytest

from fastverify.comm.cuda.link_report import (
    LinkReport,
    PcieState,
    Quantity,
    find_hints,
    islands,
    judge_collapse,
    to_matrix,
)
from fastverify.comm.link_facts import LinkFacts, facts_from_report, pcie_facts
from fastverify.errors import ConfigError
from tests.comm.cuda.link_examples import GEN5, all_row, gpu, peer_row, report, two_switches


@pytest.mark.parametrize(
    ("generation", "width", "bound"), [(5, 16, 63.0), (4, 16, 31.5), (3, 16, 15.8), (5, 8, 31.5), (1, 4, 1.0)]
)
def test_pcie_bounds(generation: int, width: int, bound: float) -> None:
    state = PcieState(generation, width)
    assert state.bound_gb_per_s == pytest.approx(bound, rel=0.01)
    assert state.practical_gb_per_s < state.bound_gb_per_s


def test_practical_rate_of_gen5_is_the_published_one() -> None:
    assert 53 <= GEN5.practical_gb_per_s <= 56


@pytest.mark.parametrize(
    ("crossing", "collapsed", "words"),
    [
        (100.0, False, "no collapse: 100.0 GB/s together; 2 islands of one flow each would be 100.0"),
        (55.0, False, "no collapse"),
        (45.0, True, "COLLAPSE: 45.0"),
        (5.4, True, "Try islands"),
    ],
)
def test_collapse_is_less_than_half_of_one_flow_per_island(crossing: float, collapsed: bool, words: str) -> None:
    verdict = judge_collapse(two_switches(crossing))
    assert verdict.collapsed is collapsed
    assert verdict.share == pytest.approx(crossing / 100.0)
    assert words in verdict.text


def test_no_verdict_without_a_measurement() -> None:
    one_port = report([gpu(0, "a"), gpu(1, "a")], [peer_row(Quantity.STORE, 0, 1, 50.0)])
    assert "all GPUs are behind one port" in judge_collapse(one_port).text
    failed = judge_collapse(two_switches(None, reason="GPU 0 cannot use memory of GPU 2"))
    assert (failed.collapsed, failed.share) == (False, None)
    assert "GPU 0 cannot use memory of GPU 2" in failed.text


def test_nvlink_is_no_question_of_pcie() -> None:
    assert not judge_collapse(two_switches(1.0, num_nvlinks=18)).collapsed


def test_gpus_of_unknown_ports_are_alone() -> None:
    assert islands([gpu(0, ""), gpu(1, "a"), gpu(2, ""), gpu(3, "a")]) == [[0], [1, 3], [2]]


def test_hints() -> None:
    assert any("remote atomics" in hint for hint in find_hints(two_switches(100.0)))
    slow = report([gpu(0, "a", busy=PcieState(4, 8)), gpu(1, "b")], [], native_atomics=True)
    assert find_hints(slow) == [
        "GPU 0 runs at PCIe Gen4 x8 under load and could do Gen5 x16: look at the slot, the riser and the BIOS."
    ]
    unknown = report([gpu(0, "a", busy=None)], [], native_atomics=True)
    assert find_hints(unknown) == []


def test_staged_peer_writes_are_noticed() -> None:
    healthy = two_switches(100.0)
    staged = replace(
        healthy,
        rows=tuple(
            replace(r, value=2.0) if r.quantity is Quantity.STORE and "gpu " in r.target else r for r in healthy.rows
        ),
    )
    assert not any("stage" in hint for hint in find_hints(healthy))
    assert any("stores to a peer run at 2.0 GB/s, to host memory at 55.0" in hint for hint in find_hints(staged))


def test_matrix() -> None:
    rows = [
        peer_row(Quantity.STORE, 0, 1, 50.04),
        peer_row(Quantity.STORE, 1, 2, None, "no"),
        all_row(Quantity.STORE, "all gpus", 9.0),
    ]
    assert to_matrix(rows, 3) == [["-", "50.0", ""], ["", "-", "no"], ["", "", "-"]]


def test_a_report_survives_json() -> None:
    original = two_switches(5.4)
    document = json.loads(json.dumps(original.to_dict(), allow_nan=False))
    assert document["collapse"]["collapsed"] is True
    assert document["rows"][0]["unit"] == "GB/s"
    assert LinkReport.from_dict(document) == original
    with pytest.raises(ConfigError, match="bench links --json"):
        LinkReport.from_dict({"rows": []})


def test_facts_of_a_measured_machine() -> None:
    facts = facts_from_report(two_switches(110.0), LinkFacts(launch_us=3.0))
    assert facts == LinkFacts(
        launch_us=3.0,
        flag_us=0.7,
        peer_gb_per_s=35.0,
        island_size=2,
        cross_flag_us=1.1,
        cross_gb_per_s=55.0,
        host_flag_us=2.0,
        host_write_gb_per_s=50.0,
        host_read_gb_per_s=40.0,
        host_fence_us=2.5,
        host_total_gb_per_s=360.0,
    )


def test_facts_over_nvlink_have_no_islands_and_missing_ones_stay() -> None:
    assert facts_from_report(two_switches(110.0, num_nvlinks=18)).island_size == 0
    known = pcie_facts(5, 4)
    assert facts_from_report(report([gpu(0, "a")], []), known) == known
