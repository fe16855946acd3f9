"""One campaign per ledger: the lock is a row with the process that holds it.

A lock whose process is gone is stale and is taken over; a process number that was given to another process since is
told apart by its start time. A lock from another host cannot be checked and is never taken over.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psutil

from fastverify.errors import LedgerError
from fastverify.tuning.ledger import Ledger

# Start times are read from the kernel with a resolution of a clock tick, 10 ms.
START_TIME_TOLERANCE_S = 0.5


@contextmanager
def campaign_lock(ledger: Ledger) -> Iterator[None]:
    """Hold the ledger for writing. Raises LedgerError with the holder's process id when another campaign runs."""
    _acquire(ledger)
    try:
        yield
    finally:
        with ledger.transaction():
            ledger.connection.execute("DELETE FROM lock WHERE process_id = ?", (os.getpid(),))


def holder(ledger: Ledger) -> int | None:
    """Process id of the campaign that runs now; None where none does."""
    row = ledger.connection.execute("SELECT process_id, process_started, host FROM lock").fetchone()
    return row[0] if row and _is_held(*row) else None


def _acquire(ledger: Ledger) -> None:
    own = (os.getpid(), psutil.Process().create_time(), socket.gethostname(), datetime.now(UTC).isoformat())
    with ledger.transaction():
        row = ledger.connection.execute("SELECT process_id, process_started, host FROM lock").fetchone()
        if row and _is_held(*row):
            process_id, _, host = row
            raise LedgerError(
                f"one campaign at a time may write {ledger.path}, and process {process_id} on {host} does. "
                "Wait for it or end it, or give another folder."
            )
        ledger.connection.execute("DELETE FROM lock")
        ledger.connection.execute("INSERT INTO lock VALUES (1, ?, ?, ?, ?)", own)


def _is_held(process_id: int, process_started: float, host: str) -> bool:
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(process_id)
        is_same = abs(process.create_time() - process_started) < START_TIME_TOLERANCE_S
        return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
