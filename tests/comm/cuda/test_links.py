"""Which measurements are made on which machine, with GPUs that only have addresses."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from fastverify.comm.cuda import link_gpus, links  # noqa: E402
from fastverify.comm.cuda.driver_calls import DriverError  # noqa: E402
from fastverify.comm.cuda.link_gpus import REGION_BYTES, Flow, FlowRates, PingSide, to_rates, trip_us  # noqa: E402
from fastverify.comm.cuda.link_report import LinkRow, Pattern, Quantity  # noqa: E402
from fastverify.errors import CommTimeoutError  # noqa: E402


def fake_gpu(index: int) -> SimpleNamespace:
    memory = (index + 1) << 32
    return SimpleNamespace(
        index=index,
        flags=memory,
        clear_flags=lambda: None,
        region_of=lambda source: memory + (source + 1) * REGION_BYTES,
    )


HOST = SimpleNamespace(node=0, device_address=lambda _: 1 << 24, clear=lambda _: None)


class Recorder:
    """Stands in for the GPUs: remembers what ran, 10 GB/s per flow, 1 us per flag."""

    def __init__(self) -> None:
        self.flows: list[Sequence[Flow]] = []
        self.sides: list[tuple[PingSide, PingSide]] = []

    def time_flows(self, flows: Sequence[Flow]) -> FlowRates:
        self.flows.append(flows)
        return FlowRates(tuple(10.0 for _ in flows), 10.0 * len(flows))

    def time_flag_us(self, starter: PingSide, answerer: PingSide, _: object, *, release: bool) -> float:
        self.sides.append((starter, answerer))
        return 2.0 if release else 1.0


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(links, "time_flows", recorder.time_flows)
    monkeypatch.setattr(links, "time_flag_us", recorder.time_flag_us)
    return recorder


def access(num_gpus: int, problem: str = "") -> dict[tuple[int, int], str]:
    return {(a, b): problem for a in range(num_gpus) for b in range(num_gpus) if a != b}


def test_one_gpu_measures_itself_and_host_memory_and_says_why_no_peer(recorder: Recorder) -> None:
    gpu = fake_gpu(0)
    rows = [*links._time_own_flags(gpu, [HOST], HOST), *links._time_host(gpu, [HOST])]
    rows += links._time_all([gpu], [HOST], [[0]], {})
    assert [(row.quantity, row.target) for row in rows if row.quantity.unit == "us"] == [
        (Quantity.FLAG, "own memory"),
        (Quantity.RELEASE_FLAG, "own memory"),
        (Quantity.FLAG, "host node 0"),
        (Quantity.RELEASE_FLAG, "host node 0"),
    ]
    patterns = [Pattern.ALONE, Pattern.ALONE, Pattern.BOTH_WAYS, Pattern.BOTH_WAYS, Pattern.ALL_AT_ONCE]
    assert [row.pattern for row in rows if row.target == "host node 0" and row.quantity.unit != "us"][:5] == patterns
    assert (rows[-1].value, rows[-1].reason) == (None, "there is one GPU, so there is no peer")


def test_flags_between_two_words_of_the_same_memory(recorder: Recorder) -> None:
    list(links._time_own_flags(fake_gpu(0), [HOST], HOST))
    for starter, answerer in recorder.sides:
        assert starter.own_flag == answerer.peer_flag != answerer.own_flag == starter.peer_flag
        assert starter.stream != answerer.stream, "one stream would run the sides one after the other"


def test_each_side_polls_its_own_gpu_and_writes_the_other(recorder: Recorder) -> None:
    a, b = fake_gpu(0), fake_gpu(1)
    rows = list(links._time_peers(a, b, access(2), HOST))
    starter, answerer = recorder.sides[0]
    assert (starter.own_flag, starter.peer_flag) == (a.flags, b.flags) == (answerer.peer_flag, answerer.own_flag)
    stores = [row for row in rows if row.quantity is Quantity.STORE]
    assert [(row.source, row.target, row.pattern, row.value) for row in stores] == [
        (0, "gpu 1", Pattern.ALONE, 10.0),
        (1, "gpu 0", Pattern.ALONE, 10.0),
        (0, "gpu 1", Pattern.BOTH_WAYS, 10.0),
    ]


def test_peers_that_cannot_be_reached_have_rows_with_the_reason(recorder: Recorder) -> None:
    rows = list(links._time_peers(fake_gpu(0), fake_gpu(1), access(2, "no access"), HOST))
    assert [(row.value, row.reason) for row in rows] == [(None, "no access")] * 4
    rows = list(links._time_all([fake_gpu(0), fake_gpu(1)], [HOST], [[0], [1]], access(2, "no access")))
    assert {row.reason for row in rows if row.target != "host node 0"} == {"no access"}
    assert all(row.value == 20.0 for row in rows if row.target == "host node 0")


def test_everybody_writes_to_all_peers_and_then_only_behind_other_ports(recorder: Recorder) -> None:
    gpus = [fake_gpu(index) for index in range(4)]
    rows = list(links._time_all(gpus, [HOST], [[0, 1], [2, 3]], access(4)))
    assert [(row.quantity.value, row.target) for row in rows] == [
        ("store", "host node 0"),
        ("load", "host node 0"),
        ("store", "all gpus"),
        ("load", "all gpus"),
        ("store", "gpus behind other ports"),
        ("load", "gpus behind other ports"),
    ]
    everybody, behind = recorder.flows[2], recorder.flows[4]
    assert [len(flow.targets) for flow in everybody] == [3, 3, 3, 3]
    assert behind[0].targets == (gpus[2].region_of(0), gpus[3].region_of(0))
    for flows in recorder.flows:
        addresses = [target for flow in flows for target in flow.targets]
        assert len(addresses) == len(set(addresses)), "flows must not write the same memory"


def test_what_fails_is_a_row_with_a_reason(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> FlowRates:
        raise DriverError("cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS")

    def hear_nothing(*_: object, release: bool) -> float:
        raise CommTimeoutError("no flag came")

    monkeypatch.setattr(links, "time_flows", refuse)
    monkeypatch.setattr(links, "time_flag_us", hear_nothing)
    rows: list[LinkRow] = list(links._time_peers(fake_gpu(0), fake_gpu(1), access(2), HOST))
    assert {row.value for row in rows} == {None}
    assert {row.reason.rpartition(": ")[2] for row in rows} == {"no flag came", "CUDA_ERROR_ILLEGAL_ADDRESS."}


def test_rates_of_flows_that_end_at_different_times() -> None:
    rates = to_rates([10_000_000, 10_000_000], [1.0, 2.0])
    assert rates.each == (10.0, 5.0)
    assert rates.together == 10.0


def test_a_trip_is_the_median_in_the_time_of_the_whole_run() -> None:
    cycles = [50_000] * 100 + [2000] * 999 + [90_000] * 901
    assert trip_us(cycles, total_cycles=2_000_000, total_ns=1_000_000) == 1.0
    assert link_gpus._ROUNDS <= link_gpus.MAX_ROUNDS
