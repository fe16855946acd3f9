"""What a backend holds is gone after close: GPU memory, host memory, open files, names in /dev/shm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastverify.comm.group import Group
from tests.comm.on_gpus.gpu_ranks import (
    GPU_MARKS,
    OURS,
    TIMEOUT_S,
    GpuFactory,
    Holdings,
    barrier,
    gpu_group,
    read_holdings,
    require,
    smallest_world,
)
from tests.ranks import run_ranks

pytestmark = GPU_MARKS
ROUNDS = 8
# Arbitrary: below the inbox of one rank, above what the driver may set aside for itself.
SLACK_BYTES = 4 << 20


@pytest.mark.parametrize("name", OURS)
def test_close_frees_everything(name: str) -> None:
    names_before = names_in_shared_memory()
    run_ranks(check_memory, smallest_world(name), require(name, smallest_world(name)), timeout_s=TIMEOUT_S)
    assert not names_in_shared_memory() - names_before


def check_memory(rank: int, world_size: int, rendezvous: str, factory: GpuFactory) -> None:
    with gpu_group(rank, world_size, rendezvous, TIMEOUT_S) as group:
        for _ in range(2):  # what is loaded once stays: kernels, torch's own streams and handles
            open_and_close(group, factory)
        before = measure(group)
        open_bytes = [open_and_close(group, factory) for _ in range(ROUNDS)]
        after = measure(group)
        assert after.gpu_bytes - before.gpu_bytes < SLACK_BYTES, (before, after)
        assert after.shared_bytes - before.shared_bytes < SLACK_BYTES, (before, after)
        assert after.num_files <= before.num_files, (before, after)
        # The measurement sees an open backend, so it would see one that stayed.
        assert min(open_bytes) - before.gpu_bytes - before.shared_bytes > SLACK_BYTES // ROUNDS


def open_and_close(group: Group, factory: GpuFactory) -> int:
    """Bytes held while open."""
    backend = factory(group)
    during = measure(group)
    backend.close()
    return during.gpu_bytes + during.shared_bytes


def measure(group: Group) -> Holdings:
    """While no rank opens or closes anything."""
    barrier(group)
    holdings = read_holdings(group.device)
    barrier(group)
    return holdings


def names_in_shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "fastverify" in path.name}
