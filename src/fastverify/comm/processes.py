"""Whether the processes of the other ranks still live.

Uses a pidfd per peer, opened while the peer is known to live, so a reused process id cannot fool it and a zombie counts
as ended. Where the kernel has no pidfd (before Linux 5.3, or another system), signal 0 is the weaker test.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Sequence

# Arbitrary: long enough not to burn a core, short against what a person notices.
_POLL_S = 0.02


class PeerProcesses:
    """The processes of a group, by rank."""

    def __init__(self, process_ids: Sequence[int]) -> None:
        self._process_ids = tuple(process_ids)
        self._pidfds = [_open_pidfd(process_id) for process_id in self._process_ids]
        # A backend that fails while it is set up has nobody who would close it.
        self._close_pidfds = weakref.finalize(self, _close_all, self._pidfds)

    def find_dead(self) -> list[int]:
        """Ranks whose process has ended."""
        return [rank for rank in range(len(self._process_ids)) if not self._is_alive(rank)]

    def wait_for_dead(self, timeout_s: float) -> list[int]:
        """As `find_dead`, waiting a little: a socket closes before its process has ended."""
        deadline = time.monotonic() + timeout_s
        while not (dead := self.find_dead()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return dead

    def explain_failure(self) -> str:
        """Who is to blame that a socket broke or a wait ran out, as far as one can know."""
        dead = self.wait_for_dead(timeout_s=0.5)
        if dead:
            return f"{'rank' if len(dead) == 1 else 'ranks'} {', '.join(map(str, dead))} ended; look for the traceback"
        return "every rank's process is alive, so one of them is late or has left the group"

    def close(self) -> None:
        """Close the descriptors. Calling twice is harmless."""
        self._close_pidfds()
        self._pidfds = [None] * len(self._pidfds)

    def _is_alive(self, rank: int) -> bool:
        pidfd = self._pidfds[rank]
        if pidfd is not None:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            return not poller.poll(0)
        try:
            os.kill(self._process_ids[rank], 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's: it is there
            return True
        return True


def _close_all(pidfds: Sequence[int | None]) -> None:
    for pidfd in pidfds:
        if pidfd is not None:
            os.close(pidfd)


def _open_pidfd(process_id: int) -> int | None:
    try:
        return os.pidfd_open(process_id)
    except (AttributeError, OSError):
        return None
