"""The start-up probe over ranks that sum through gloo and spoil what a test tells them to spoil."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from fastverify.comm.cuda.launch import Launch, Protocol
from fastverify.comm.cuda.probe import ProbeCase, ProbeResult, count_wrong, make_parts, probe
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group, create_group
from tests.ranks import run_ranks

LINES, SENTINEL = Launch(Protocol.LINES, 1, 32), Launch(Protocol.SENTINEL, 1, 32)
CASES = (ProbeCase(LINES, 4098), ProbeCase(SENTINEL, 9002))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Spoil = Callable[[torch.Tensor, Protocol, int], torch.Tensor]


@dataclass(frozen=True)
class FakeReport:
    peer: int
    epoch: int


class GlooRank:
    """Sums in rank order what `spoil` makes of every rank's data."""

    def __init__(self, group: Group, spoil: Spoil) -> None:
        self._gloo = GlooBackend(group)
        self._spoil = spoil
        self._calls = 0
        self.report: FakeReport | None = None
        self.aborts = 0

    def all_reduce(
        self, x: torch.Tensor, out: torch.Tensor | None = None, launch: Launch | None = None
    ) -> torch.Tensor:
        assert out is not None
        assert launch is not None
        gathered = self._spoil(self._gloo.all_gather(x), launch.protocol, self._calls)
        self._calls += 1
        return out.copy_(gathered.float().sum(0))

    def status(self) -> FakeReport | None:
        return self.report

    def abort(self) -> None:
        self.aborts += 1
        self.report = FakeReport(1, 3)


def run_probe(rank: int, world_size: int, rendezvous: str, spoil: Spoil, spoiled_rank: int) -> ProbeResult:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    gloo_rank = GlooRank(group, spoil if rank == spoiled_rank else leave_alone)
    return probe(group, gloo_rank, CASES, 3, wait=lambda timeout_s: True)


def leave_alone(gathered: torch.Tensor, protocol: Protocol, call: int) -> torch.Tensor:
    return gathered


def lose_one_word_of_rank_0(gathered: torch.Tensor, protocol: Protocol, call: int) -> torch.Tensor:
    if protocol is Protocol.SENTINEL and call == 4:
        largest = int(gathered[0].argmax())
        gathered[0, largest] = 0
    return gathered


class KeepTheFirst:
    """Rank 2's data of the first call of each case arrives in every later one too."""

    def __init__(self) -> None:
        self.first: dict[Protocol, torch.Tensor] = {}

    def __call__(self, gathered: torch.Tensor, protocol: Protocol, call: int) -> torch.Tensor:
        gathered[2] = self.first.setdefault(protocol, gathered[2].clone())
        return gathered


@pytest.mark.ranks
def test_links_without_fault_pass() -> None:
    results = run_ranks(run_probe, 3, leave_alone, 0)
    assert all(result.faults == () and result.explain("push") == "" for result in results)


@pytest.mark.ranks
def test_one_lost_word_names_link_and_protocol_on_every_rank() -> None:
    results = run_ranks(run_probe, 3, lose_one_word_of_rank_0, 1)
    assert all(result == results[0] for result in results)
    result = results[0]
    (fault,) = result.faults
    assert (fault.source, fault.reader, fault.num_wrong, fault.num_elements) == (0, 1, 1, 3 * 4501)
    assert result.broken_protocols == {Protocol.SENTINEL}
    assert not result.is_hung
    text = result.explain("push", ("GPU-a", "GPU-b", "GPU-c"))
    assert "rank 0 to rank 1 (GPU GPU-a to GPU-b) over push memory (sentinel at 8.8 KB): 1 of 13503 elements" in text


@pytest.mark.ranks
def test_data_of_an_earlier_round_is_wrong() -> None:
    results = run_ranks(run_probe, 3, KeepTheFirst(), 0)
    assert {(fault.source, fault.reader) for fault in results[0].faults} == {(2, 0)}
    assert results[0].broken_protocols == {Protocol.LINES, Protocol.SENTINEL}


@pytest.mark.ranks
def test_a_link_that_delivers_nothing_is_aborted_and_named() -> None:
    results = run_ranks(run_into_silence, 2)
    for result, _ in results:
        assert result.is_hung
        assert "no data came from rank 1 to rank 0 over host memory (lines at 4.0 KB)" in result.explain("host")
        assert len(result.faults) == 1
    assert [aborts for _, aborts in results] == [1, 0]


def run_into_silence(rank: int, world_size: int, rendezvous: str) -> tuple[ProbeResult, int]:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    gloo_rank = GlooRank(group, leave_alone)
    result = probe(group, gloo_rank, CASES[:1], 1, wait=lambda timeout_s: rank == 1 or gloo_rank.aborts > 0)
    return result, gloo_rank.aborts


def make_group(world_size: int) -> Group:
    group = Group(0, 1, None, "fastverify-test", 1.0, (0,))
    object.__setattr__(group, "world_size", world_size)
    return group


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", range(2, 9))
def test_every_sum_is_exact_and_every_rank_is_blamed_for_its_own(dtype: torch.dtype, world_size: int) -> None:
    parts = make_parts(make_group(world_size), 0, 500, dtype)
    assert all(part.count_nonzero() > 100 for part in parts), "data is not zero"
    total = torch.zeros(500)
    for part in parts:
        assert torch.equal(part.to(dtype).float(), part.float())
        total += part.to(dtype).float()
    assert torch.equal(total.to(dtype).float(), total)
    assert count_wrong(total.to(dtype), parts).tolist() == [0] * world_size
    for source in range(world_size):
        without = (total - parts[source]).to(dtype)
        expected = [0] * world_size
        expected[source] = int(parts[source].count_nonzero())
        assert count_wrong(without, parts).tolist() == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.25, 3e38])
def test_what_is_no_sum_at_all_is_everybody_s_fault(value: float) -> None:
    parts = make_parts(make_group(2), 0, 100, torch.bfloat16)
    total = torch.full((100,), value).to(torch.bfloat16)
    wrong = count_wrong(total, parts)
    if value == 0.25:  # its bits are those of zero: only elements that are zero need the fraction to be seen
        assert count_wrong(total, torch.zeros_like(parts)).tolist() == [100, 100]
    assert (wrong > 80).all()
