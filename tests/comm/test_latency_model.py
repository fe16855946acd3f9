"""The latency model: what it must never say, and how far it is from what was published."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.comm.cuda.launch import Algorithm, Protocol
from fastverify.comm.latency_model import (
    Scheme,
    best_protocol,
    predict_all,
    predict_fused_us,
    predict_latency_us,
    protocols_of,
    rounds_of,
    scheme_of,
)
from fastverify.comm.link_facts import H200_HOST, H200_NVLINK, LinkFacts, pcie_facts
from fastverify.errors import ConfigError

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fit_latency_model.py"
# Everything known at once, so that every scheme can be asked.
FULL = replace(H200_HOST, flag_us=0.7, peer_gb_per_s=35.0, island_size=4, cross_flag_us=1.1, cross_gb_per_s=57.0)
WORLD_SIZES = st.sampled_from([2, 4, 8])
SIZES = st.integers(1, 1 << 23)


def facts_for(scheme: Scheme, world_size: int) -> LinkFacts:
    return replace(FULL, island_size=world_size // 2 if scheme is Scheme.ISLANDS else 0)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Scheme, Protocol, int, LinkFacts]:
    world_size, scheme = draw(WORLD_SIZES), draw(st.sampled_from(Scheme))
    if scheme is Scheme.ISLANDS:
        world_size = max(world_size, 4)
    protocol = draw(st.sampled_from(protocols_of(scheme, world_size)))
    return scheme, protocol, world_size, facts_for(scheme, world_size)


@given(calls(), SIZES, SIZES)
def test_a_larger_message_never_takes_less(
    call: tuple[Scheme, Protocol, int, LinkFacts], one_bytes: int, other_bytes: int
) -> None:
    scheme, protocol, world_size, facts = call
    low, high = (
        predict_latency_us(scheme, protocol, world_size, size, facts) for size in sorted((one_bytes, other_bytes))
    )
    assert facts.launch_us < low <= high


@given(calls(), SIZES)
def test_more_ranks_never_take_less(call: tuple[Scheme, Protocol, int, LinkFacts], num_bytes: int) -> None:
    scheme, _, world_size, facts = call
    if world_size == 8:
        return
    more = 2 * world_size
    wider = facts_for(scheme, more)
    assert best_protocol(scheme, world_size, num_bytes, facts)[1] <= best_protocol(scheme, more, num_bytes, wider)[1]


@given(
    calls(),
    SIZES,
    st.sampled_from(
        [
            *("launch_us", "push_start_us", "work_us", "per_peer_us"),
            *("flag_us", "cross_flag_us", "host_flag_us", "host_fence_us", "handle_gb_per_s"),
            *("peer_gb_per_s", "cross_gb_per_s", "host_write_gb_per_s", "host_read_gb_per_s", "host_total_gb_per_s"),
        ]
    ),
)
def test_a_better_link_never_hurts(call: tuple[Scheme, Protocol, int, LinkFacts], num_bytes: int, fact: str) -> None:
    scheme, protocol, world_size, facts = call
    factor = 2.0 if fact.endswith("gb_per_s") else 0.5
    better = replace(facts, **{fact: getattr(facts, fact) * factor})
    before = predict_latency_us(scheme, protocol, world_size, num_bytes, facts)
    assert predict_latency_us(scheme, protocol, world_size, num_bytes, better) <= before


@given(world_size=st.sampled_from([4, 8]))
def test_two_shot_moves_what_the_textbook_says(world_size: int) -> None:
    one = rounds_of(Scheme.PUSH, Protocol.SENTINEL, world_size)
    two = rounds_of(Scheme.PUSH_TWO_SHOT, Protocol.SENTINEL, world_size)
    assert sum(item.written for item in one) == world_size - 1
    assert sum(item.written for item in two) == pytest.approx(2 * (world_size - 1) / world_size)


def test_an_outbox_is_written_once_however_many_read_it() -> None:
    for world_size in (2, 4, 8):
        (item,) = rounds_of(Scheme.HOST_OUTBOX, Protocol.FLAGS, world_size)
        assert (item.written, item.read) == (1, world_size - 1)


def test_everything_that_crosses_shares_one_uplink() -> None:
    (push,) = rounds_of(Scheme.PUSH, Protocol.SENTINEL, 8, island_size=4)
    assert push.crossing == 16, "4 ranks write to 4 others"
    islands = rounds_of(Scheme.ISLANDS, Protocol.SENTINEL, 8, island_size=4)
    assert sum(item.crossing for item in islands) == 2, "one message in float32"


def test_collapse_makes_islands_the_fastest_and_health_does_not() -> None:
    peer_schemes = (Scheme.PUSH, Scheme.PUSH_TWO_SHOT, Scheme.ISLANDS)
    for collapses, expected in ((True, Scheme.ISLANDS), (False, Scheme.PUSH_TWO_SHOT)):
        facts = pcie_facts(5, 8, island_size=4, collapses=collapses)
        times = {scheme: best_protocol(scheme, 8, 172_032, facts)[1] for scheme in peer_schemes}
        assert min(times, key=lambda scheme: times[scheme]) is expected


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_launches_have_a_scheme(world_size: int) -> None:
    assert scheme_of("push", Algorithm.ISLANDS, Protocol.LINES, world_size) is Scheme.ISLANDS
    assert scheme_of("host", Algorithm.ONE_SHOT, Protocol.SENTINEL, world_size) is Scheme.HOST_INBOX
    flags = scheme_of("host", Algorithm.ONE_SHOT, Protocol.FLAGS, world_size)
    assert flags is (Scheme.HOST_INBOX if world_size == 2 else Scheme.HOST_OUTBOX)
    assert Protocol.FLAGS in protocols_of(flags, world_size)


def test_fusing_costs_a_norm_and_more_rows_than_fit_cost_passes() -> None:
    plain = best_protocol(Scheme.PUSH, 2, 4 * 14_336, H200_NVLINK)[1]
    assert predict_fused_us(Scheme.PUSH, 2, 4, 14_336, H200_NVLINK) == pytest.approx(plain + H200_NVLINK.norm_us)
    few, many = (predict_fused_us(Scheme.PUSH, 2, 64, 14_336, H200_NVLINK, rows) for rows in (64, 16))
    assert few < many


def test_sums_hide_behind_a_link_but_not_behind_none() -> None:
    call = (Scheme.PUSH, Protocol.SENTINEL, 2, 1 << 20)
    fast_sums = replace(H200_NVLINK, handle_gb_per_s=1e6)
    assert predict_latency_us(*call, fast_sums) == predict_latency_us(*call, H200_NVLINK)
    no_link = replace(H200_NVLINK, peer_gb_per_s=1e6)
    assert predict_latency_us(*call, replace(no_link, handle_gb_per_s=1e6)) < predict_latency_us(*call, no_link)


def test_sentinels_through_host_memory_end_near_where_they_were_measured_to_end() -> None:
    # Measured: benchmarks/results, two H200: sentinels are faster at 224 KB, flags at 1 MB.
    assert best_protocol(Scheme.HOST_INBOX, 2, 224 * 1024, H200_HOST)[0] is Protocol.SENTINEL
    assert best_protocol(Scheme.HOST_INBOX, 2, 1 << 20, H200_HOST)[0] is Protocol.FLAGS


def test_everything_the_facts_allow_is_predicted() -> None:
    peers = predict_all(8, [14_336, 57_344], pcie_facts(5, 8, island_size=4))
    assert [p.scheme for p in peers] == [Scheme.PUSH, Scheme.PUSH_TWO_SHOT, Scheme.ISLANDS] * 2
    host = predict_all(2, [14_336], H200_HOST)
    assert [p.scheme for p in host] == [Scheme.HOST_INBOX, Scheme.HOST_OUTBOX, Scheme.HOST_TWO_SHOT]
    assert all(p.us == predict_latency_us(p.scheme, p.protocol, 2, p.num_bytes, H200_HOST) for p in host)


def test_two_ranks_fit_into_an_island_of_four() -> None:
    inside = pcie_facts(5, 2, island_size=4)
    alone = replace(inside, island_size=0)
    sizes = (Scheme.PUSH, Protocol.SENTINEL, 2, 57_344)
    assert predict_latency_us(*sizes, inside) == predict_latency_us(*sizes, alone)


def test_what_the_facts_or_the_kernels_lack_is_said() -> None:
    with pytest.raises(ConfigError, match="push needs peer_gb_per_s"):
        predict_latency_us(Scheme.PUSH, Protocol.LINES, 2, 1, H200_HOST)
    with pytest.raises(ConfigError, match="host_outbox of 2 ranks has no protocol sentinel"):
        predict_latency_us(Scheme.HOST_OUTBOX, Protocol.SENTINEL, 2, 1, H200_HOST)
    with pytest.raises(ConfigError, match="two halves, got 8 ranks in islands of 8"):
        rounds_of(Scheme.ISLANDS, Protocol.SENTINEL, 8)
    with pytest.raises(ConfigError, match="multiple of the island size, got 6 and 4"):
        rounds_of(Scheme.PUSH, Protocol.SENTINEL, 6, island_size=4)
    with pytest.raises(ConfigError, match="got host, ISLANDS"):
        scheme_of("host", Algorithm.ISLANDS, Protocol.LINES, 8)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_latency_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("role", "median_bound", "worst_bound"), [("calibrates", 0.08, 0.25), ("judges", 0.15, 0.4)])
def test_the_model_is_near_what_was_published(
    script: ModuleType, role: str, median_bound: float, worst_bound: float
) -> None:
    tables = [t for t in json.loads(script.PUBLISHED.read_text())["tables"] if t["role"] == role]
    rows = [row for table in tables for row in script.judge(table)]
    assert len([row for row in rows if not row.fitted]) >= 20
    assert script.median_error(rows) < median_bound
    assert max(abs(row.error) for row in rows if not row.fitted) < worst_bound


@pytest.mark.parametrize(
    ("link", "backends", "records"),
    [
        ("h200-nvlink", ("auto",), ("",)),
        ("h200-host", ("host",), ("", "_tune_host", "_tune")),
    ],
)
def test_our_two_gpu_rows_are_the_records(
    script: ModuleType, link: str, backends: tuple[str, ...], records: tuple[str, ...]
) -> None:
    (table,) = [
        t for t in json.loads(script.PUBLISHED.read_text())["tables"] if t["link"] == link and "h200x2" in t["source"]
    ]
    measured: dict[str, float] = {}
    for name in records:
        record = json.loads((SCRIPT.parent / "results" / f"all_reduce_gpu{name}_h200x2_2026-11.json").read_text())
        for row in record["results"]["rows"]:
            if row["backend"] in backends and not row["fused"] and row["median_us"]:
                size = str(row["num_bytes"])
                measured[size] = min(measured.get(size, row["median_us"]), row["median_us"])
    assert table["us"].items() <= measured.items()
    assert len(table["us"]) == 11


def test_a_record_of_the_benchmark_is_judged(script: ModuleType, tmp_path: Path) -> None:
    row = {"backend": "push", "num_bytes": 8192, "world_size": 2, "fused": False, "mode": "graph", "median_us": 2.0}
    others = [{**row, "fused": True}, {**row, "mode": "eager"}, {**row, "backend": "nccl"}, {**row, "median_us": None}]
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"rows": [row, {**row, "backend": "host", "world_size": 4}, *others]}))
    push, host = script.tables_of_record(path, None)
    assert [judged.num_bytes for judged in script.judge(push)] == [8192]
    assert script.judge(push)[0].modelled_us == best_protocol(Scheme.PUSH, 2, 8192, H200_NVLINK)[1]
    both = [best_protocol(scheme, 4, 8192, H200_HOST)[1] for scheme in (Scheme.HOST_INBOX, Scheme.HOST_OUTBOX)]
    assert script.judge(host)[0].modelled_us == min(both)


def corrected_rows() -> list[tuple[str, list[int], list[str]]]:
    """Rows of ranks below "Corrected": what they are, the sizes above them, the cells."""
    page = (SCRIPT.parents[1] / "docs" / "all-reduce-predictions.md").read_text().partition("## Corrected")[2]
    rows, sizes = [], []
    for line in page.splitlines():
        what, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| |"):
            sizes = [int(cell.split()[0]) * {"KB": 1024, "MB": 1 << 20}[cell.split()[1]] for cell in cells]
        elif re.match(r"\d ranks[,:] ", what) and len(cells) == len(sizes):
            rows.append((what.partition(" (")[0], sizes, cells))
        elif not line.startswith("|"):
            sizes = []
    return rows


def test_corrected_predictions_are_what_the_model_says() -> None:
    schemes = {
        "push": (Scheme.PUSH, H200_NVLINK),
        "push two-shot": (Scheme.PUSH_TWO_SHOT, H200_NVLINK),
        "one-shot inbox": (Scheme.HOST_INBOX, H200_HOST),
        "one-shot outbox": (Scheme.HOST_OUTBOX, H200_HOST),
        "two-shot": (Scheme.HOST_TWO_SHOT, H200_HOST),
    }
    rows = corrected_rows()
    assert len(rows) == 10
    for what, sizes, cells in rows:
        scheme, link = schemes[re.split("[,:] ", what)[1]]
        for num_bytes, cell in zip(sizes, cells, strict=True):
            protocol, us = best_protocol(scheme, int(what[0]), num_bytes, link)
            number, _, letter = cell.partition(" ")
            assert number == (f"{us:.1f}" if us < 10 else f"{us:.0f}"), (what, num_bytes)
            assert letter in ("", protocol.name[0]), (what, num_bytes)
