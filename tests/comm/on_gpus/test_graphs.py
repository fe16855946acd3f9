"""All-reduces in CUDA graphs: every size and launch in one graph, data that changes, busy streams, late ranks.

Ranks with a GPU of their own replay ten thousand times. Each replay's sums are compared on the GPU, to the bit, with a
float32 sum in rank order of the inputs that the ranks exchanged over their sockets; only the count of wrong elements is
read, at the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

import pytest
import torch

from fastverify.comm.accuracy import add_exactly, is_within, norm_error_bound, norm_exactly, residual_error_bound
from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, candidate_launches
from fastverify.comm.gpu.timing import capture, timing_stream
from fastverify.comm.group import Group
from fastverify.errors import ConfigError
from tests.comm.on_gpus.gpu_ranks import (
    GPU_MARKS,
    OURS,
    TIMEOUT_S,
    GpuFactory,
    gather,
    gpu_group,
    is_shared,
    real_world,
    require,
)
from tests.contracts.all_reduce_contract import make_inputs, sum_in_rank_order
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
# Elements of bfloat16: an odd tail, the plain, four-token and twelve-token passes of a model 7168 wide, and a size from
# which on two ranks try two-shot too.
SIZES = (515, 7168, 28_672, 86_016, 131_072)
# At these, every kernel there is runs, in batches that few threads must repeat.
THOROUGH_SIZES = (515, 28_672)
# Arbitrary: a prime number of inputs, so that no buffer meets the same data again when it is used again.
NUM_BANKS = 13
REPLAYS, SHARED_REPLAYS = 10_000, 15
EPS = 1e-5


@pytest.mark.parametrize("name", OURS)
def test_replays_of_a_graph_of_mixed_calls_stay_exact(name: str) -> None:
    world_size = real_world(name)
    replays = SHARED_REPLAYS if is_shared(world_size) else REPLAYS
    run_ranks(check_replays, world_size, require(name, world_size), replays, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("names", [("push", "push"), ("push", "host")])
def test_two_groups_replay_at_once(names: tuple[str, str]) -> None:
    """Each on a stream of its own, neither waiting for the other."""
    world_size = real_world("push")
    factories = [require(name, world_size) for name in names]
    replays = SHARED_REPLAYS if is_shared(world_size) else 1000
    run_ranks(check_two_groups, world_size, factories, replays, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("name", OURS)
def test_fused_norms_in_a_graph(name: str) -> None:
    world_size = real_world(name)
    replays = SHARED_REPLAYS if is_shared(world_size) else 1000
    run_ranks(check_fused_replays, world_size, require(name, world_size), replays, timeout_s=TIMEOUT_S)


@dataclass(frozen=True)
class Call:
    """One all-reduce of a graph: a piece of its buffer, and the launch where it is forced."""

    start: int
    size: int
    launch: Launch | None = None


class GraphedSums:
    """A graph of all-reduces over pieces of one buffer, its inputs and what must come out, for NUM_BANKS inputs."""

    def __init__(self, group: Group, backend: AllReduceBackend, calls: list[Call], seed: int) -> None:
        self.calls, self.backend = calls, backend
        total = calls[-1].start + calls[-1].size
        own = make_inputs(1, (NUM_BANKS, total), torch.bfloat16, 100 * seed + group.rank)[0]
        self.banks = own.to(group.device)
        expected = sum_in_rank_order([part.to(group.device) for part in gather(group, own)])
        # What lies between the pieces is not summed.
        self.expected = self.banks.clone()
        for call in calls:
            piece = slice(call.start, call.start + call.size)
            self.expected[:, piece] = expected[:, piece]
        self.inputs, self.work = torch.empty_like(self.banks[0]), torch.empty_like(self.banks[0])
        self.wrong = torch.zeros((), dtype=torch.int64, device=group.device)
        self.write(0)
        self.run()
        torch.cuda.synchronize(group.device)
        self.graph = capture(self.run, 1)

    def run(self) -> None:
        """The calls of one replay."""
        self.work.copy_(self.inputs)
        for call in self.calls:
            all_reduce(self.backend, self.work[call.start : call.start + call.size], call.launch)

    def write(self, replay: int) -> None:
        """New inputs."""
        self.inputs.copy_(self.banks[replay % NUM_BANKS])

    def replay(self, replay: int) -> None:
        """Once, with inputs of its own, and the answer checked."""
        self.write(replay)
        self.work.fill_(float("nan"))
        self.graph.replay()
        self.wrong += (self.work != self.expected[replay % NUM_BANKS]).sum()


def all_reduce(backend: AllReduceBackend, x: torch.Tensor, launch: Launch | None) -> None:
    if launch is None:
        backend.all_reduce(x)
    else:
        backend.rank.all_reduce(x, launch=launch)  # type: ignore[attr-defined]


def list_calls(backend: AllReduceBackend, device: torch.device, world_size: int) -> list[Call]:
    """Every size with the backend's own choice and with every launch that the chooser would measure for it."""
    calls: list[Call] = []
    start = 0
    for size in SIZES:
        launches = [None, *candidate_launches(backend.fabric, world_size, 2 * size, fused=False)]  # type: ignore[attr-defined]
        if size in THOROUGH_SIZES:
            x = torch.ones(size, dtype=torch.bfloat16, device=device)
            launches += [launch for launch in every_launch() if can_launch(backend, x, launch)]
        for launch in launches:
            calls.append(Call(start, size, launch))
            start += -(-size // 8) * 8  # pieces start at 16 bytes
    return calls


def every_launch() -> list[Launch]:
    """One launch per kernel of the plain sums, whether this machine has it or not."""
    kinds = product(Algorithm, Protocol, (1, 2))
    return [
        Launch(protocol, 4, 128, units, algorithm=algorithm)
        for algorithm, protocol, units in kinds
        if (algorithm, protocol) != (Algorithm.ISLANDS, Protocol.FLAGS)
    ]


def can_launch(backend: AllReduceBackend, x: torch.Tensor, launch: Launch) -> bool:
    """Whether the kernel exists for this memory and number of ranks; all ranks refuse alike, before anything runs."""
    try:
        backend.rank.all_reduce(x, launch=launch)  # type: ignore[attr-defined]
    except ConfigError:
        return False
    return True


class BusyStreams:
    """Products and copies on streams that nobody waits for, while the graph runs."""

    def __init__(self, device: torch.device) -> None:
        self._streams = [torch.cuda.Stream(device) for _ in range(2)]
        self._matrix = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
        self._host = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
        self._target = torch.empty_like(self._host, device=device)
        self._product = torch.empty_like(self._matrix)

    def add_work(self) -> None:
        with torch.cuda.stream(self._streams[0]):
            torch.mm(self._matrix, self._matrix, out=self._product)
        with torch.cuda.stream(self._streams[1]):
            self._target.copy_(self._host, non_blocking=True)


def check_replays(rank: int, world_size: int, rendezvous: str, factory: GpuFactory, replays: int) -> None:
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.cuda.stream(timing_stream(group.device)):
        backend = factory(group)
        sums = GraphedSums(group, backend, list_calls(backend, group.device, world_size), seed=5)
        busy = BusyStreams(group.device)
        for replay in range(replays):
            be_late(replay, replays, rank, world_size)
            busy.add_work()
            sums.replay(replay)
        assert int(sums.wrong) == 0
        leave(group, backend)


def be_late(replay: int, replays: int, rank: int, world_size: int) -> None:
    """Half-way one host sleeps; ten times in between one GPU does, each time another."""
    if replay == replays // 2 and rank == world_size - 1:
        torch.cuda.synchronize()
        time.sleep(0.5)
    if replay % max(1, replays // 10) == 0 and replay // max(1, replays // 10) % world_size == rank:
        torch.cuda._sleep(1_000_000)


def check_two_groups(rank: int, world_size: int, rendezvous: str, factories: list[GpuFactory], replays: int) -> None:
    with (
        gpu_group(rank, world_size, f"{rendezvous}-first", 60) as first,
        gpu_group(rank, world_size, f"{rendezvous}-second", 60) as second,
    ):
        groups = (first, second)
        streams = [torch.cuda.Stream(first.device) for _ in groups]
        backends = [factory(group) for factory, group in zip(factories, groups, strict=True)]
        calls = [Call(0, 7168), Call(7168, 86_016), Call(93_184, 515)]
        sums = []
        for group, backend, stream in zip(groups, backends, streams, strict=True):
            with torch.cuda.stream(stream):
                sums.append(GraphedSums(group, backend, calls, seed=len(sums)))
        for replay in range(replays):
            for one, stream in zip(sums, streams, strict=True):
                with torch.cuda.stream(stream):
                    one.replay(replay)
        torch.cuda.synchronize(first.device)
        assert [int(one.wrong) for one in sums] == [0, 0]
        for group, backend in zip(groups, backends, strict=True):
            leave(group, backend)


def check_fused_replays(rank: int, world_size: int, rendezvous: str, factory: GpuFactory, replays: int) -> None:
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.cuda.stream(timing_stream(group.device)):
        backend = factory(group)
        for rows, hidden_size in ((1, 7168), (4, 7168), (64, 4096)):
            check_one_fused_shape(group, backend, (rows, hidden_size), replays)
        leave(group, backend)


def check_one_fused_shape(group: Group, backend: AllReduceBackend, shape: tuple[int, int], replays: int) -> None:
    """The residual of a replay is where the next one starts, for as many replays as there are inputs."""
    device, world_size = group.device, group.world_size
    inputs = [make_inputs(world_size, shape, torch.bfloat16, seed, device) for seed in range(NUM_BANKS)]
    residual_before, weights = make_inputs(2, shape, torch.bfloat16, 77, device)
    x, residual, weight = torch.empty_like(residual_before), torch.empty_like(residual_before), weights[0]
    normed = torch.empty_like(x)

    def run() -> None:
        normed.copy_(backend.all_reduce_residual_rmsnorm(x, residual, weight, EPS))

    wrong = torch.zeros((), dtype=torch.int64, device=device)
    expected = []
    for bank in inputs:
        x.copy_(bank[group.rank])
        residual.copy_(residual_before)
        run()
        assert is_within(residual, add_exactly([residual_before, *bank]), residual_error_bound(bank, residual_before))
        assert is_within(normed, norm_exactly(residual, weight, EPS), norm_error_bound(residual, weight, EPS))
        expected.append((residual.clone(), normed.clone()))
    graph = capture(run, 1)
    for replay in range(replays):
        x.copy_(inputs[replay % NUM_BANKS][group.rank])
        residual.copy_(residual_before)
        normed.fill_(float("nan"))
        graph.replay()
        for answer, right in zip((residual, normed), expected[replay % NUM_BANKS], strict=True):
            wrong += (answer != right).sum()
    assert int(wrong) == 0
    mine = torch.stack([normed, residual]).cpu()
    assert all(torch.equal(mine, other) for other in gather(group, mine)), "ranks hold different bits"


def leave(group: Group, backend: AllReduceBackend) -> None:
    """Close once every rank has read its answers."""
    torch.cuda.synchronize(group.device)
    backend.all_gather(torch.zeros(1, device=group.device))
    torch.cuda.synchronize(group.device)
    backend.close()
