"""Token events on their way to the owner, several steps in one message.

A message costs the owner a wake-up, on a CPU machine taken from a rank: so tokens of running requests wait up to
20 ms, while first tokens and ends go at once. Knows nothing of the connection but that it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from time import monotonic

from fastverify.engine.commands import Events
from fastverify.engine.request import TokenEvent

# Arbitrary: a reader does not notice it, and it is several cycles of a small model.
_INTERVAL_S = 0.02


class Outbox:
    """Collects events and sends them. Every request's tokens keep their order."""

    def __init__(self, owner: Connection) -> None:
        self._owner = owner
        self._pending: dict[str, TokenEvent] = {}
        self._known: set[str] = set()
        self._sent_s = 0.0

    def add(self, events: Sequence[TokenEvent]) -> None:
        """Take the events of one step; sends when one of them is urgent or the interval is over."""
        is_urgent = False
        for event in events:
            before = self._pending.get(event.request_id)
            merged = event if before is None else replace(event, token_ids=before.token_ids + event.token_ids)
            self._pending[event.request_id] = merged
            is_urgent |= event.finished or event.request_id not in self._known
            if event.finished:
                self._known.discard(event.request_id)
            else:
                self._known.add(event.request_id)
        if self._pending and (is_urgent or monotonic() - self._sent_s > _INTERVAL_S):
            self._owner.send(Events(tuple(self._pending.values())))
            self._pending = {}
            self._sent_s = monotonic()
