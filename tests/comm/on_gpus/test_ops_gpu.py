"""The torch operators between GPUs: inside a CUDA graph while other streams are busy, and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fastverify.comm import ops
from fastverify.comm.communicator import Communicator
from fastverify.comm.group import Group
from tests.comm.on_gpus.gpu_ranks import (
    GPU_MARKS,
    TIMEOUT_S,
    GpuFactory,
    barrier,
    gpu_group,
    is_shared,
    real_world,
    require,
)
from tests.comm.on_gpus.test_graphs import BusyStreams
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
ROWS, HIDDEN, EPS = 4, 7168, 1e-5
REPLAYS, SHARED_REPLAYS = 2000, 15
fv = torch.ops.fastverify


@pytest.mark.parametrize("name", ["push", "nccl"])
def test_operators_in_a_graph_with_busy_streams(name: str) -> None:
    world_size = real_world(name)
    replays = SHARED_REPLAYS if is_shared(world_size) else REPLAYS
    run_ranks(check_graph, world_size, require(name, world_size), replays, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_operators_under_torch_compile(mode: str) -> None:
    world_size = real_world("push")
    run_ranks(check_compiled, world_size, require("push", world_size), mode, timeout_s=TIMEOUT_S)


def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    """Two sums with a norm, a plain one and a gather, as in a decoder layer; the residual is the layer's own."""
    residual = residual + 1
    normed = fv.all_reduce_residual_rmsnorm(x, residual, weight, EPS, name)
    normed = fv.all_reduce_residual_rmsnorm(normed * 0.5, residual, weight, EPS, name)
    return fv.all_gather(fv.all_reduce(normed, name) + residual, name)


def make_inputs(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x differs by rank, residual and weight do not."""

    def make(seed: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).to(group.device, torch.bfloat16)

    return make(group.rank, ROWS, HIDDEN), make(100, ROWS, HIDDEN), make(101, HIDDEN)


def finish(group: Group, communicator: Communicator) -> None:
    barrier(group)
    communicator.close()


def check_graph(rank: int, world_size: int, rendezvous: str, factory: GpuFactory, replays: int) -> None:
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.no_grad():
        communicator = Communicator(group, factory(group))
        name = ops.register(communicator)
        x, residual, weight = make_inputs(group)
        expected = layer(x, residual, weight, name).clone()
        barrier(group)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(group.device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            answer = layer(x, residual, weight, name)
        busy = BusyStreams(group.device)
        wrong = torch.zeros((), dtype=torch.int64, device=group.device)
        for _ in range(replays):
            busy.add_work()
            graph.replay()
            wrong += (answer != expected).sum()
        assert int(wrong) == 0
        finish(group, communicator)


def check_compiled(rank: int, world_size: int, rendezvous: str, factory: GpuFactory, mode: str) -> None:
    with gpu_group(rank, world_size, rendezvous, 60) as group, torch.no_grad():
        communicator = Communicator(group, factory(group))
        name = ops.register(communicator)
        inputs = make_inputs(group)
        expected = layer(*inputs, name).clone()
        compiled: Callable[..., torch.Tensor] = torch.compile(layer, mode=mode, fullgraph=True)
        for _ in range(6):  # warm, captured, replayed
            torch.cuda.synchronize(group.device)  # its streams take turns with ours
            answer = compiled(*inputs, name).clone()
            # Code that a compiler fuses may round at fewer places: the sums themselves are exact, so ranks agree.
            torch.testing.assert_close(answer, expected, rtol=2e-2, atol=2e-2)
        torch.cuda.synchronize(group.device)
        finish(group, communicator)
