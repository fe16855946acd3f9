"""The GPU benchmark without a GPU: lanes that answer as ranks would, or fail as ranks do."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fastverify.comm.backend import Support
from fastverify.comm.bench import gpu_run
from fastverify.comm.bench.gpu_lane import LanePlan
from fastverify.comm.bench.gpu_rows import CaseKey, GpuBenchConfig, GpuBenchResult, GpuBenchRow, Prepared
from fastverify.comm.bench.gpu_run import choose_names, plan_lanes, run_gpu_bench
from fastverify.comm.bench.lanes import Failure, LaneError, LaneSpec
from fastverify.comm.peers.nccl_settings import NO_ALGORITHM_TEXTS
from fastverify.errors import ConfigError

CONFIG = GpuBenchConfig(sizes=(8192,), world_size=2, backends=("push", "nccl"), iterations=60)
Answer = Callable[["FakeLane", str, tuple[Any, ...]], list[Any] | None]


class FakeLane:
    """Two ranks; the second is always a little slower. `misbehave` may answer or raise instead."""

    log: list[tuple[str, str, Any]]

    def __init__(self, spec: LaneSpec, log: list[tuple[str, str, Any]], misbehave: Answer) -> None:
        self.spec, self.log, self.misbehave = spec, log, misbehave
        log.append((spec.name, "open", None))

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        self.log.append((self.spec.name, method, arguments[0] if arguments else None))
        answer = self.misbehave(self, method, arguments)
        if answer is not None:
            return answer
        if method == "create":
            return [Support(ok=True, reason="set up")] * 2
        if method == "prepare":
            return [Prepared(ok=True, num_calls=50)] * 2
        if method == "finish":
            return [True, True]
        if method == "time_empty":
            return [[0.6] * arguments[0]] * 2
        num_samples = arguments[1]
        return [[2.0] * num_samples, [3.0] * num_samples]

    def close(self) -> None:
        self.log.append((self.spec.name, "close", None))


def fine(lane: FakeLane, method: str, arguments: tuple[Any, ...]) -> None:
    """Nothing goes wrong."""


def measure(
    config: GpuBenchConfig = CONFIG, misbehave: Answer = fine, plans: list[LanePlan] | None = None
) -> tuple[GpuBenchResult, list[tuple[str, str, Any]]]:
    log: list[tuple[str, str, Any]] = []
    open_lane: Any = lambda spec: FakeLane(spec, log, misbehave)  # noqa: E731
    return run_gpu_bench(config, open_lane=open_lane, plans=plans), log


def rows_of(result: GpuBenchResult, way: str) -> list[GpuBenchRow]:
    return [row for row in result.rows if row.way == way]


def test_a_row_is_the_slowest_rank_and_says_what_it_is() -> None:
    result, _ = measure()
    assert result.empty_us == 0.6
    row = rows_of(result, "push")[0]
    assert row.to_dict() == {
        "backend": "push", "num_bytes": 8192, "world_size": 2, "dtype": "bfloat16", "fused": False, "mode": "graph",
        "setting": None, "launch": None, "num_calls": 50, "median_us": 3.0, "iqr_us": 0.0, "correct": True,
        "reason": None,
    }  # fmt: skip
    assert len(row.samples_us) == 60
    assert rows_of(result, "nccl")[0].setting == "default"
    assert {row.fused for row in result.rows} == {False, True}
    assert [row.fused for row in rows_of(result, "push+norm")] == [True]


def test_cases_of_all_lanes_take_turns_forth_and_back() -> None:
    config = dataclasses.replace(CONFIG, nccl_settings=("default", "ll"))
    _, log = measure(config)
    turns = [(lane, key.backend) for lane, method, key in log if method == "turn" and not key.fused]
    forth = [("default", "push"), ("default", "nccl"), ("nccl-ll", "nccl")]
    assert turns == [*forth, *reversed(forth), *forth]


@pytest.mark.parametrize("failure", [Failure.ENDED, Failure.HUNG, Failure.RAISED])
def test_a_backend_that_brings_its_lane_down_is_left_out_and_the_others_go_on(failure: Failure) -> None:
    def misbehave(lane: FakeLane, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "turn" and arguments[0].backend == "nccl":
            raise LaneError(failure, "rank 1 failed in turn: it fell over")

    result, log = measure(misbehave=misbehave)
    assert all("it fell over" in str(row.reason) and row.median_us is None for row in rows_of(result, "nccl"))
    assert all(row.correct and len(row.samples_us) == 60 for row in rows_of(result, "push"))
    assert log.count(("default", "open", None)) == (3 if failure is Failure.RAISED else 2)
    creates = [name for _, method, name in log if method == "create"]
    assert creates[:2] == ["push", "nccl"]
    assert creates[2:] == (["push", "nccl"] * 2 if failure is Failure.RAISED else ["push"])


def test_a_case_that_all_ranks_refuse_costs_nobody_anything() -> None:
    def misbehave(lane: FakeLane, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "prepare" and arguments[0].backend == "push" and arguments[0].fused:
            raise LaneError(Failure.REFUSED, "a row must fit a block")

    config = dataclasses.replace(CONFIG, sizes=(8192, 16384))
    result, log = measure(config, misbehave)
    assert [row.reason for row in rows_of(result, "push")] == [None, "a row must fit a block"] * 2
    assert log.count(("default", "open", None)) == 1


def test_a_wrong_answer_after_the_timing_shows() -> None:
    def misbehave(lane: FakeLane, method: str, arguments: tuple[Any, ...]) -> list[Any] | None:
        return [True, False] if method == "finish" and arguments[0].backend == "push" else None

    result, _ = measure(misbehave=misbehave)
    assert [row.correct for row in rows_of(result, "push")] == [False, False]
    assert [row.correct for row in rows_of(result, "nccl")] == [True, True]


def test_what_a_rank_cannot_run_is_said_with_the_reason_of_that_rank() -> None:
    def misbehave(lane: FakeLane, method: str, arguments: tuple[Any, ...]) -> list[Any] | None:
        if method == "create" and arguments[0] == "push":
            return [Support(ok=False, reason="rank(s) [1] cannot"), Support(ok=False, reason="no NVRTC here")]
        return None

    result, _ = measure(misbehave=misbehave)
    assert {row.reason for row in rows_of(result, "push")} == {"no NVRTC here"}
    assert result.setups["push"] == "did not run: no NVRTC here"


def test_a_lane_that_never_starts_leaves_reasons_for_all_of_it() -> None:
    config = dataclasses.replace(CONFIG, nccl_settings=("default", "ll"))

    def open_lane(spec: LaneSpec) -> Any:
        if spec.name == "default":
            raise LaneError(Failure.RAISED, "rank 0 failed in start: no memory")
        return FakeLane(spec, [], fine)

    result = run_gpu_bench(config, open_lane=open_lane)
    assert {row.reason for row in rows_of(result, "push") + rows_of(result, "nccl")} == {
        "rank 0 failed in start: no memory"
    }
    assert all(row.median_us == 3.0 for row in rows_of(result, "nccl:ll"))


@pytest.mark.parametrize("failure", [Failure.RAISED, Failure.REFUSED])
def test_tree_as_users_write_it_fails_is_explained_and_the_corrected_setting_runs(
    failure: Failure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "nccl_version", lambda: (2, 28, 9))
    config = dataclasses.replace(CONFIG, nccl_settings=("default", "tree_plain"))

    def misbehave(lane: FakeLane, method: str, arguments: tuple[Any, ...]) -> None:
        if lane.spec.name == "nccl-tree_plain" and method == "create":
            text = f"NCCL WARN {NO_ALGORITHM_TEXTS[0]} Broadcast with datatype ncclFloat32"
            if failure is Failure.REFUSED:
                raise LaneError(failure, f"a broadcast, as servers make it, fails: {text}")
            raise LaneError(failure, "rank 0 failed in create: DistBackendError: NCCL error", text)

    result, _ = measure(config, misbehave)
    failed = rows_of(result, "nccl:tree_plain")
    assert failed
    assert all("NCCL_ALGO=Tree holds for every collective" in str(row.reason) for row in failed)
    corrected = rows_of(result, "nccl:tree")
    assert {row.fused for row in corrected} == {False, True}
    assert all(row.median_us == 3.0 for row in corrected)
    assert "tree for all-reduce only" in result.setups["nccl:tree"]


def test_no_further_size_is_begun_out_of_time() -> None:
    config = dataclasses.replace(CONFIG, sizes=(4096, 8192))
    progress: list[tuple[int, int, int]] = []
    open_lane: Any = lambda spec: FakeLane(spec, [], fine)  # noqa: E731
    result = run_gpu_bench(
        config,
        lambda done, total, rows: progress.append((done, total, len(rows))),
        limit_s=-1.0,
        open_lane=open_lane,
    )
    assert result.rows == ()
    assert "out of time after 0 of 2 sizes" in result.remarks
    assert progress == [(0, 2, 0)]


def test_lanes_are_one_per_environment() -> None:
    config = dataclasses.replace(CONFIG, backends=("push", "nccl", "auto"), nccl_settings=("ll", "p2p_off"))
    plans = plan_lanes(config)
    assert [(plan.spec.name, plan.backends, plan.setting) for plan in plans] == [
        ("default", ("push",), None),
        ("nccl-ll", ("nccl",), "ll"),
        ("nccl-p2p_off", ("nccl",), "p2p_off"),
        ("auto", ("auto",), None),
    ]
    assert plans[2].spec.env["NCCL_P2P_DISABLE"] == "1"
    assert plans[1].spec.env["NCCL_PROTO"] == "LL"


def test_a_setting_that_means_nothing_to_this_nccl_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "nccl_version", lambda: (2, 28, 9))
    result, log = measure(dataclasses.replace(CONFIG, backends=("nccl",), nccl_settings=("tree_2_31",)))
    assert log == []
    assert all("2.31" in str(row.reason) for row in result.rows)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"sizes": ()}, "at least one size"),
        ({"sizes": (8192, 4096), "hidden_size": 4096}, "whole rows of 8192 bytes"),
        ({"sizes": (7,)}, r"whole elements of bfloat16.*\[7\]"),
        ({"world_size": 1}, "2 to 64 ranks"),
        ({"iterations": 2}, "3 or more iterations"),
        ({"dtype": "int8"}, "a dtype is one of .* got int8"),
        ({"modes": ("lazy",)}, "a mode is one of graph, eager, got lazy"),
        ({"backends": ()}, "at least one backend"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        dataclasses.replace(CONFIG, **changes)


def test_names_are_resolved_or_refused_with_the_list() -> None:
    assert choose_names("", ("a", "b"), ("a",), "--x") == ("a",)
    assert choose_names("all", ("a", "b"), ("a",), "--x") == ("a", "b")
    assert choose_names("b, a,b", ("a", "b"), ("a",), "--x") == ("b", "a")
    with pytest.raises(ConfigError, match="--x is one of a, b or all, got 'c'"):
        choose_names("a,c", ("a", "b"), (), "--x")


def test_rows_of_the_norm_are_whole() -> None:
    assert CONFIG.shape(14336) == (1, 7168)
    assert CONFIG.shape(57344) == (4, 7168), "the widest row that fits"
    assert CONFIG.shape(8192) == (1, 4096)
    assert CONFIG.shape(6) == (3, 1)
    assert dataclasses.replace(CONFIG, sizes=(6400,), hidden_size=320).shape(6400) == (10, 320)
    assert dataclasses.replace(CONFIG, sizes=(57344,), hidden_size=4096).shape(57344) == (7, 4096)


def test_case_keys_go_through_a_pipe_unchanged() -> None:
    import pickle

    key = CaseKey("push", 8192, True, "graph", 3)
    assert pickle.loads(pickle.dumps(key)) == key
