"""What the ranks of a group tell each other while a workspace is set up and taken down: bytes, outcomes, goodbyes.

Setting up goes over gloo, where every rank takes part; taking down goes over the group's store, since a rank that has
died must not hold up the others. It knows nothing about CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from fastverify import errors
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import FastverifyError

# Arbitrary: leaving is not urgent.
_POLL_S = 0.005


def exchange(group: Group, data: bytes) -> list[bytes]:
    """Every rank's bytes, by rank. Raises CommTimeoutError where a rank does not come."""
    with closing(GlooBackend(group)) as gloo:
        sizes = [int(size) for size in gloo.all_gather(torch.tensor(len(data)))]
        padded = torch.zeros(max(sizes) + 1, dtype=torch.uint8)
        padded[: len(data) + 1] = torch.frombuffer(bytearray(data + b"\0"), dtype=torch.uint8)
        parts = gloo.all_gather(padded)
    return [bytes(part[:size].tolist()) for part, size in zip(parts, sizes, strict=True)]


@contextmanager
def agreed(group: Group, doing: str) -> Iterator[None]:
    """Where the block fails on one rank, every rank raises the same error, which names that rank and the work."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - every rank raises it below
        failure = error
    agree(group, doing, failure)


def agree(group: Group, doing: str, failure: Exception | None) -> None:
    """See `agreed`: for code that is no block."""
    outcome = "" if failure is None else f"{type(failure).__name__}\n{failure}"
    outcomes = [part.decode() for part in exchange(group, outcome.encode())]
    failed = {rank: text.partition("\n") for rank, text in enumerate(outcomes) if text}
    if not failed:
        return
    kind, _, message = failed[min(failed)]
    ranks = ", ".join(map(str, failed))
    raise _error_class(kind)(f"{doing} failed on rank(s) {ranks} of {group.world_size}: {message}") from failure


def _error_class(name: str) -> type[FastverifyError]:
    """The class of errors.py of this name; anything else was not raised on purpose."""
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, FastverifyError) else FastverifyError


def say_goodbye(group: Group, key: str, timeout_s: float) -> list[int]:
    """Tell the others that this rank has let go of `key` and wait until they have, or have died.

    Returns the ranks that are alive and may still hold it; where the store itself is gone, all that are alive.
    """
    assert group.store is not None
    deadline = time.monotonic() + timeout_s
    missing = [rank for rank in range(group.world_size) if rank != group.rank]
    with closing(PeerProcesses(group.process_ids)) as peers:
        try:
            group.store.set(f"{key}/left/{group.rank}", "1")
            while True:
                missing = [rank for rank in missing if not group.store.check([f"{key}/left/{rank}"])]
                missing = [rank for rank in missing if rank not in peers.find_dead()]
                if not missing or time.monotonic() > deadline:
                    return missing
                time.sleep(_POLL_S)
        except RuntimeError:
            dead = peers.find_dead()
            return [rank for rank in missing if rank not in dead]
