import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.comm.cuda.launch import Algorithm, Protocol
from fastverify.comm.gpu.auto import AutoBackend
from fastverify.comm.gpu.chooser import GpuChooser, Shapes
from fastverify.comm.gpu.table import Row
from fastverify.comm.group import Group, create_group
from fastverify.errors import EnvironmentMissingError, FastverifyError
from tests.comm import fake_gpu_backends as fakes
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks
KB = 1024
SHAPES = Shapes(sums=(4 * KB, 16 * KB, 64 * KB, 256 * KB), norms={64: (1, 32), 512: (4,)}, gathers=(KB,))
EVERYONE = ("push", "push_two_shot", "nccl", "nccl_window", "vllm", "flashinfer", "mscclpp", "symm_mem_multimem")


def make_chooser(group: Group, folder: str, names: tuple[str, ...] = EVERYONE) -> GpuChooser:
    device = fakes.ClockDevice(group.rank)
    return GpuChooser(group, specs=fakes.make_specs(*names), device=device, shapes=SHAPES, folder=Path(folder))


def test_a_whole_choice_is_right_and_alike_on_every_rank(tmp_path: Path) -> None:
    rank_0, rank_1 = run_ranks(choose_all, 2, str(tmp_path))
    assert rank_0 == rank_1


def choose_all(rank: int, world_size: int, rendezvous: str, folder: str) -> list[Any]:
    group = create_group(rank, world_size, rendezvous, timeout_s=30)
    backend, choice = make_chooser(group, folder).choose_auto()
    check_reasons(choice.table.unable, {row.backend: row.reason for row in choice.table.rows if not row.correct})
    check_plan(backend, choice)
    check_samples(choice.table.rows)
    check_calls(backend, rank)
    check_kept_file(group, folder, choice)
    return [choice.backend, choice.reason, choice.table]


def check_reasons(unable: dict[str, str], failed: dict[str, str]) -> None:
    assert unable["mscclpp"] == "on rank(s) 1: no MSCCL++ here"
    assert unable["nccl_window"] == "EnvironmentMissingError: the window cannot be registered"
    assert unable["flashinfer"] == "on rank(s) 1: RuntimeError: illegal instruction"
    assert failed["vllm"] == "its answers were wrong"
    assert "no clusters of 2" in failed["push"]


def check_plan(backend: Any, choice: Any) -> None:
    plan = choice.plan
    assert backend.name == choice.backend == "auto(push+symm_mem_multimem)", choice.reason
    assert "push up to 64 KB, then symm_mem_multimem" in choice.reason
    assert "measured in" in choice.reason
    small, large = plan.find("all_reduce", 4 * KB)[0], plan.find("all_reduce", 256 * KB)[0]
    assert small.launch is not None
    assert (small.launch.protocol, small.launch.algorithm) == (Protocol.LINES, Algorithm.ONE_SHOT)
    assert small.launch.threads == 64, "the launch that is fastest by the formula"
    assert small.latency_us == pytest.approx(1.5 * (2.4 + 0.0064), abs=0.002), "the slowest rank counts"
    assert large.latency_us == pytest.approx(1.5 * (8.0 + 0.003 * 256), abs=0.002)
    assert plan.find("all_gather", KB)[0].backend == "push"
    assert plan.find("all_reduce_residual_rmsnorm", 128)[0].backend == "push"
    rules = fakes_of(backend)["push"].rank.rules
    assert [rule.max_bytes for rule in rules] == list(SHAPES.sums)
    assert rules[-1].launch.algorithm is Algorithm.TWO_SHOT, "ours keeps its best launch where it does not win"
    assert fakes.CLOCK.opened.count("push") == 1, "push and push_two_shot share one workspace"
    assert {"nccl", "vllm", "flashinfer"} <= set(fakes.CLOCK.closed), "what is not needed does not stay"


def check_samples(rows: tuple[Row, ...]) -> None:
    """A library counts in the style that suits it; replays that were disturbed change no time, and are told of."""
    assert {row.out_of_place for row in rows if row.backend == "symm_mem_multimem"} == {False, True}
    assert any("twice the median" in row.remark for row in rows)
    timed = [row for row in rows if row.latency_us is not None]
    assert all(row.is_quick or row.latency_us < 50 for row in timed)
    assert all((row.iqr_us is None) == row.is_quick for row in timed)


def fakes_of(backend: AutoBackend) -> dict[str, Any]:
    return dict(backend._backends)


def check_calls(backend: AutoBackend, rank: int) -> None:
    for num_elements in (3, 4 * KB, 512 * KB, 512 * KB + 1):
        x = torch.full((num_elements,), rank + 1.0, dtype=torch.bfloat16)
        assert backend.can_run(num_elements, x.dtype).ok
        assert backend.all_reduce(x) is x
        assert (x == 3).all(), num_elements
        kept, out = torch.full_like(x, rank + 1.0), torch.empty_like(x)
        backend.all_reduce_out(kept, out)
        assert (out == 3).all()
        assert (kept == rank + 1).all()
    x, residual = torch.full((4, 64), rank + 1.0), torch.ones(4, 64)
    normed = backend.all_reduce_residual_rmsnorm(x, residual, torch.ones(64), 0.0)
    assert (residual == 4).all()
    torch.testing.assert_close(normed, torch.ones(4, 64))
    assert backend.all_gather(torch.tensor([rank])).tolist() == [[0], [1]]


def check_kept_file(group: Group, folder: str, first: Any) -> None:
    """The second choice measures nothing; a file that is broken, on rank 0 only, is measured anew by all."""
    fakes.CLOCK.opened.clear()
    clock_us = fakes.CLOCK.now_us
    _, choice = make_chooser(group, folder).choose_auto()
    assert choice.table == first.table
    assert f"from {first.path}" in choice.reason
    assert fakes.CLOCK.now_us == clock_us
    assert sorted(fakes.CLOCK.opened) == ["push", "symm_mem_multimem"], "only what the plan names is opened"
    if group.rank == 0:
        first.path.write_text("{")
    _, choice = make_chooser(group, folder).choose_auto()
    assert choice.backend == first.backend
    assert "measured in" in choice.reason


def test_one_backend_by_name(tmp_path: Path) -> None:
    run_ranks(choose_by_name, 2, str(tmp_path))


def choose_by_name(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=30)
    chooser = make_chooser(group, folder)
    backend, choice = chooser.choose_named("push")
    assert "launches measured" in choice.reason
    launches = [rule.launch for rule in backend.rank.rules]
    assert len(launches) == len(SHAPES.sums)
    assert all(launch.algorithm is Algorithm.ONE_SHOT for launch in launches), "push is not push_two_shot"
    assert backend.rank.fused_rules
    backend, choice = chooser.choose_named("nccl")
    assert (backend.name, choice.reason) == ("nccl", "asked for")
    with pytest.raises(EnvironmentMissingError, match=r"mscclpp.*rank\(s\) 1: no MSCCL\+\+"):
        chooser.choose_named("mscclpp")
    with pytest.raises(EnvironmentMissingError, match=r"no all-reduce.*mscclpp: on rank.*nccl_window: .*registered"):
        make_chooser(group, folder, ("mscclpp", "nccl_window")).choose_auto()
    chooser.choose_auto()
    _, choice = chooser.choose_named("push_two_shot")
    assert f"launches from {choice.path}" in choice.reason


def test_what_a_kept_table_names_may_have_gone(tmp_path: Path) -> None:
    run_ranks(choose_after_loss, 2, str(tmp_path))


def choose_after_loss(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    """The key does not see everything: then the choice is made anew, with a warning that says why."""
    group = create_group(rank, world_size, rendezvous, timeout_s=30)
    make_chooser(group, folder, ("nccl", "symm_mem_multimem")).choose_auto()
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fastverify").addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        lose(patch, "symm_mem_multimem")
        backend, _ = make_chooser(group, folder, ("nccl", "symm_mem_multimem")).choose_auto()
    assert backend.name == "auto(nccl)"
    assert any("measured anew" in message and "the switch is gone" in message for message in records)


def lose(patch: pytest.MonkeyPatch, lost: str) -> None:
    create = fakes.create

    def create_or_fail(group: Group, name: str) -> Any:
        if name == lost:
            raise RuntimeError("the switch is gone")
        return create(group, name)

    patch.setattr(fakes, "create", create_or_fail)


def test_a_backend_asked_for_by_name_must_be_right_too(tmp_path: Path) -> None:
    run_ranks(choose_a_wrong_one, 2, str(tmp_path))


def choose_a_wrong_one(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=30)
    sum_out = fakes.FakeRank.all_reduce

    def sum_wrongly(self: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        return sum_out(self, *arguments, **options).add_(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakes.FakeRank, "all_reduce", sum_wrongly)
        with pytest.raises(FastverifyError, match="gave a right answer: push: its answers were wrong"):
            make_chooser(group, folder, ("push",)).choose_named("push")
    assert fakes.CLOCK.closed[-1] == "push"
