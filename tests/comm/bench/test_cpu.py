import dataclasses
import os
from typing import Any

import pytest
import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.bench import cpu as bench_module
from fastverify.comm.bench import cpu_launch
from fastverify.comm.bench.cpu import BenchConfig, BenchResult, measure
from fastverify.comm.bench.cpu_launch import run_bench
from fastverify.comm.chooser import Choice
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group, create_group
from fastverify.errors import ConfigError, WorkerDiedError
from tests.ranks import CONTEXT, run_ranks

_RUN_RANK = cpu_launch._run_rank


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"sizes": ()}, "at least one size"),
        ({"sizes": (6,)}, "whole elements of float32, got 6"),
        ({"world_size": 1}, "2 to 64 ranks, got world_size 1"),
        ({"iterations": 2}, "3 or more iterations"),
        ({"dtype": "int8"}, "got 'int8'"),
        ({"backends": ("nccl",)}, "among gloo, shm"),
        ({"sizes": (4096, 1 << 40)}, "at most 1024 MB.*got 1099511627776"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        dataclasses.replace(BenchConfig(sizes=(4096,)), **changes)


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that need not import torch; tests/cli/test_bench.py starts them as a user does."""
    monkeypatch.setattr(cpu_launch, "_CONTEXT", CONTEXT)


@pytest.mark.ranks
@pytest.mark.usefixtures("quick_start")
def test_every_backend_is_timed_and_checked_at_every_size() -> None:
    progress: list[tuple[int, int]] = []
    config = BenchConfig(sizes=(4, 4100, 65536), iterations=12, dtype="bfloat16", hidden_size=64)
    result = run_bench(config, lambda done, total: progress.append((done, total)))
    keys = {(row.backend, row.fused, row.num_bytes) for row in result.rows}
    assert keys == {(b, fused, size) for b in ("gloo", "shm") for fused in (False, True) for size in config.sizes}
    for row in result.rows:
        assert row.correct is True
        assert row.median_us is not None
        assert row.median_us > 0
        assert len(row.samples_us) == 12
        assert row.reason is None
        assert "samples_us" not in row.to_dict()
    assert progress == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.ranks
def test_a_wrong_backend_and_one_that_cannot_run_are_shown_as_such() -> None:
    result: BenchResult = run_ranks(measure_wrong_and_missing, 2)[0]
    wrong = [row for row in result.rows if row.backend == "gloo"]
    assert [row.correct for row in wrong] == [False, False]
    missing = [row for row in result.rows if row.backend == "shm"]
    assert len(missing) == 2
    assert all(row.median_us is None and "no shared memory today" in str(row.reason) for row in missing)


class WrongOnRank1(GlooBackend):
    """Leaves rank 1 with its own input, as a kernel would that reads before its peer has written."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        own = x.clone()
        summed = super().all_reduce(x)
        return x.copy_(own) if self._rank == 1 else summed


def measure_wrong_and_missing(rank: int, world_size: int, rendezvous: str) -> BenchResult:
    def choose_wrong(group: Group) -> tuple[GlooBackend, Choice]:
        return WrongOnRank1(group), Choice("gloo", "for this test")

    def find_no_support(world_size: int) -> Support:
        return Support(ok=False, reason="no shared memory today") if rank == 0 else SUPPORTED

    groups = {name: create_group(rank, world_size, f"{rendezvous}-{name}") for name in ("gloo", "shm", "align")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bench_module._CHOOSERS, "gloo", choose_wrong)
        patch.setattr("fastverify.comm.chooser.find_support", find_no_support)
        return measure(groups, BenchConfig(sizes=(4096,), iterations=3), lambda done, total: None)


@pytest.mark.ranks
@pytest.mark.usefixtures("quick_start")
def test_a_rank_that_fails_ends_the_benchmark_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_launch, "_run_rank", die_quietly)
    with pytest.raises(WorkerDiedError, match="ended without a word"):
        run_bench(BenchConfig(sizes=(4096,)))


def die_quietly(rank: int, config: BenchConfig, folder: str, sender: object) -> None:
    """A rank that the kernel killed: no message, only a closed pipe."""


@pytest.mark.ranks
@pytest.mark.usefixtures("quick_start")
def test_what_a_rank_refuses_is_raised_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that only the ranks read: the user gets its one sentence and its exit code, no traceback."""
    monkeypatch.setattr(cpu_launch, "_run_rank", run_with_a_wrong_limit)
    with pytest.raises(ConfigError, match=r"^FASTVERIFY_COMM_TIMEOUT_S must be a number"):
        run_bench(BenchConfig(sizes=(4096,)))


def run_with_a_wrong_limit(*arguments: Any) -> None:
    os.environ["FASTVERIFY_COMM_TIMEOUT_S"] = "soon"
    _RUN_RANK(*arguments)
