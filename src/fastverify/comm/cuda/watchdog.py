"""Turns a hang of the GPU all-reduce into an error: one thread per process looks at every open backend.

It looks at two signs, both plain reads: what a kernel wrote into host memory when it gave up, and whether the peers'
processes live. A kernel gives up by its own clock (`spin_bound_cycles`), since only the GPU knows when a replayed graph
started to wait. A peer that died ends the wait at once: the kernels that wait are told to leave. The error is logged
when it is seen and raised by the next call. Nothing here calls CUDA once it runs.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

import torch

from fastverify.comm.cuda.driver_calls import call_driver, open_driver
from fastverify.comm.group import Group
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import CommTimeoutError

logger = logging.getLogger(__name__)

# Arbitrary: soon enough for a person, and twenty looks a second cost nothing.
PERIOD_S = 0.05


class Report(Protocol):
    """What a kernel says when it gives up."""

    @property
    def peer(self) -> int:
        """The rank whose data never came."""
        ...

    @property
    def epoch(self) -> int:
        """The number of the call."""
        ...


class WatchedRank(Protocol):
    """The two things the watchdog needs of a rank; neither calls CUDA."""

    def status(self) -> Report | None:
        """What a kernel wrote when it gave up."""
        ...

    def abort(self) -> None:
        """Make kernels that wait leave."""
        ...


class Watch:
    """What the watchdog knows about one backend. `failure` is what went wrong, or empty."""

    def __init__(self, group: Group, fabric: str, rank: WatchedRank, peers: PeerProcesses | None = None) -> None:
        self.failure = ""
        self._group = group
        self._fabric = fabric
        self._rank = rank
        self._peers = peers or PeerProcesses(group.process_ids)

    def look(self) -> None:
        """Look once; the first failure stays."""
        if self.failure:
            return
        self.failure = self._find_failure()
        if self.failure:
            self._rank.abort()
            logger.error("%s", self.failure)

    def check(self) -> None:
        """Raise CommTimeoutError where something went wrong."""
        if self.failure:
            raise CommTimeoutError(self.failure)

    def close(self) -> None:
        """Forget the peers."""
        self._peers.close()

    def _find_failure(self) -> str:
        rank, world_size = self._group.rank, self._group.world_size
        # A peer that died is the cause of a wait that ran out, so it comes first.
        dead = [peer for peer in self._peers.find_dead() if peer != rank]
        report = self._rank.status()
        if dead:
            return (
                f"{'rank' if len(dead) == 1 else 'ranks'} {', '.join(map(str, dead))} ended while rank {rank} of "
                f"{world_size} had an all-reduce over {self._fabric} memory open{_where(report)}. "
                f"Look for the traceback, and start the ranks again."
            )
        if report is None:
            return ""
        return (
            f"rank {rank} waited {self._group.timeout_s:g} s for rank {report.peer} in call {report.epoch} over "
            f"{self._fabric} memory{self._link(report.peer)}. Make the same calls in the same order on every rank, or "
            f"raise FASTVERIFY_COMM_TIMEOUT_S where a rank may be that late; open a new communicator, since this one "
            f"is out of step."
        )

    def _link(self, peer: int) -> str:
        gpus = self._group.gpus
        return f" from GPU {gpus[peer]} to GPU {gpus[self._group.rank]}" if gpus else ""


def _where(report: Report | None) -> str:
    return "" if report is None else f", in call {report.epoch}"


class Watchdog:
    """A thread that runs while there is something to watch, and never keeps the process alive."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._thread: threading.Thread | None = None
        self._is_idle = threading.Event()

    def add(self, watch: Watch) -> None:
        """Look at it from now on."""
        with self._lock:
            self._watches.append(watch)
            self._is_idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fastverify watchdog", daemon=True)
                self._thread.start()

    def remove(self, watch: Watch) -> None:
        """Stop looking at it and close it; no look is under way when this returns. Calling twice is harmless."""
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)
                watch.close()
            if not self._watches:
                self._is_idle.set()

    def look_at(self, watch: Watch) -> None:
        """Look now, without waiting for the next period."""
        with self._lock:
            watch.look()

    def _run(self) -> None:
        while True:
            self._is_idle.wait(self._period_s)
            with self._lock:
                if not self._watches:
                    self._thread = None
                    return
                for watch in self._watches:
                    watch.look()


WATCHDOG = Watchdog()


def find_spin_bound(timeout_s: float, device: torch.device) -> int:
    """Clock cycles after which a kernel of this device has waited `timeout_s`.

    Counted at the highest clock, so that nothing is given up early; a GPU that runs slower waits longer.
    """
    driver = open_driver()
    handle = call_driver("cuDeviceGet", device.index)
    clock_khz = call_driver("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE, handle)
    return int(timeout_s * clock_khz * 1000)
