"""Rank processes of a benchmark that leave nothing behind: Ctrl-C is their parent's to handle, and they end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait


@contextmanager
def shielded_from_interrupts() -> Iterator[None]:
    """Processes started in the block never see Ctrl-C, which a terminal sends to the whole group.

    A blocked signal is inherited, by exec too; what this process gets meanwhile is delivered at the end of the block.
    """
    resource_tracker.ensure_running()  # which a start would do otherwise, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Called in a child: end it as soon as its parent has ended, even by SIGKILL, whatever the child waits for."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="fastverify parent watch", daemon=True).start()
