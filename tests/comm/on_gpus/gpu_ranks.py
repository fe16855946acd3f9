"""Ranks on GPUs: which GPU a rank takes, which backends can run with how many ranks, and what a rank holds.

Rank r takes GPU r modulo their number, so that any world size runs on any machine. Kernels of ranks that share a GPU
take turns of about two milliseconds, so such ranks get tens of calls where ranks with a GPU of their own get thousands.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.gpu.backends import GPU_BACKENDS, find_gpu_backend
from fastverify.comm.group import Group, close_group, create_group
from fastverify.errors import CommTimeoutError
from tests.ranks import run_ranks

GPU_MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that torch sees"),
]
OURS = tuple(name for name, spec in GPU_BACKENDS.items() if spec.module == "fastverify.comm.cuda.backend")
PEERS = tuple(name for name in GPU_BACKENDS if name not in OURS)
# Long enough for eight ranks that compile kernels on one GPU, below the limit of a test.
TIMEOUT_S = 100.0


@dataclass(frozen=True)
class GpuFactory:
    """What the contract's checks call with a group: the backend of this name, on this rank's GPU."""

    name: str

    def __call__(self, group: Group) -> AllReduceBackend:
        return find_gpu_backend(self.name).create(group)

    def pick_device(self, rank: int) -> torch.device:
        """The GPU of a rank, made the current one."""
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device


def is_shared(world_size: int) -> bool:
    """Whether several ranks get the same GPU."""
    return world_size > torch.cuda.device_count()


def smallest_world(name: str) -> int:
    """Ranks that a backend needs at least."""
    return 4 if name == "islands" else 2


def real_world(name: str) -> int:
    """One rank per GPU where that makes a group, else the fewest that share one."""
    sizes = [size for size in (2, 4, 8) if size <= torch.cuda.device_count() and size >= smallest_world(name)]
    return sizes[-1] if sizes else smallest_world(name)


def require(name: str, world_size: int) -> GpuFactory:
    """The factory of a backend; skips the test with the backend's own reason where it cannot run."""
    if name in PEERS and is_shared(world_size):
        pytest.skip(f"{world_size} ranks share {torch.cuda.device_count()} GPU(s)")
    reason = _find_reasons(world_size)[name]
    if reason:
        pytest.skip(reason)
    return GpuFactory(name)


@cache
def _find_reasons(world_size: int) -> dict[str, str]:
    """Why each backend cannot run with this many ranks; empty for those that can."""
    per_rank = run_ranks(find_reasons, world_size, timeout_s=TIMEOUT_S)
    return {name: next((reasons[name] for reasons in per_rank if reasons[name]), "") for name in GPU_BACKENDS}


def find_reasons(rank: int, world_size: int, rendezvous: str) -> dict[str, str]:
    """This rank's answer; none of them may raise."""
    with gpu_group(rank, world_size, rendezvous, TIMEOUT_S) as group:
        supports = {name: spec.find_support(group) for name, spec in GPU_BACKENDS.items()}
    assert all(support.ok or support.reason for support in supports.values()), supports
    return {name: support.reason for name, support in supports.items() if not support.ok} | {
        name: "" for name, support in supports.items() if support.ok
    }


@contextmanager
def gpu_group(rank: int, world_size: int, rendezvous: str, timeout_s: float) -> Iterator[Group]:
    """A group whose ranks have their GPUs."""
    device = GpuFactory("").pick_device(rank)
    group = create_group(rank, world_size, rendezvous, timeout_s=timeout_s, device=device)
    yield group
    close_group(group)


def barrier(group: Group) -> None:
    """All ranks are here, and nothing of this rank is under way on its GPU."""
    torch.cuda.synchronize(group.device)
    assert group.torch_group is not None
    group.torch_group.barrier().wait()


def gather(group: Group, x: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's CPU tensor, by the group's own sockets and no backend of ours."""
    with closing(GlooBackend(group)) as gloo:
        parts = gloo.all_gather(x.view(torch.uint8))
    return [part.view(x.dtype) for part in parts]


def raised_within(backend: AllReduceBackend, x: torch.Tensor, limit_s: float) -> CommTimeoutError:
    """The error of a call whose peer will not come: kernels must end by themselves, then a next call must raise.

    A call of torch that waits for the GPU would not come back if they did not end, and the rank's deadline would.
    """
    start_s = time.monotonic()
    while time.monotonic() - start_s < limit_s:
        try:
            backend.all_reduce(x)
        except CommTimeoutError as error:
            torch.cuda.synchronize(x.device)
            assert time.monotonic() - start_s < limit_s
            return error
        torch.cuda.synchronize(x.device)
    pytest.fail(f"no error after {limit_s} s")


def check_gpu_works(device: torch.device) -> None:
    """The GPU is not held up by a kernel that was left behind."""
    start_s = time.monotonic()
    assert float(torch.ones(1 << 20, device=device).sum()) == 1 << 20
    assert time.monotonic() - start_s < 2


@dataclass(frozen=True)
class Holdings:
    """What this process, or its GPU, holds at one moment."""

    gpu_bytes: int
    shared_bytes: int
    num_files: int


def read_holdings(device: torch.device) -> Holdings:
    """After everything that only waits to be collected has gone."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    status = Path("/proc/self/status").read_text()
    shared = re.search(r"RssShmem:\s+(\d+) kB", status)
    assert shared
    return Holdings(total_bytes - free_bytes, int(shared[1]) * 1024, len(list(Path("/proc/self/fd").iterdir())))
