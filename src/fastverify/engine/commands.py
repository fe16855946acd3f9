"""Messages between the owner of an engine and its rank processes, and their order among the ranks.

All ranks must apply a command at the same step. Rank 0 reads the owner's pipe at the start of step s and forwards what
it finds, marked for step s + 1; the collectives of step s make sure that it has arrived everywhere by then, so nobody
waits for a message while there is work. Without a pass in the step before (idle, or all cancelled) there is no such
guarantee: then rank 0 sends a message that the others wait for.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from fastverify.engine.request import Request, TokenEvent
from fastverify.engine.stats import EngineStats


@dataclass(frozen=True)
class Submit:
    """Queue a request."""

    request: Request


@dataclass(frozen=True)
class Cancel:
    """End a request."""

    request_id: str


@dataclass(frozen=True)
class AskStats:
    """Rank 0 answers with `StatsReply`."""

    ticket: int


@dataclass(frozen=True)
class StartProfile:
    """Every rank starts its profiler and answers with `ProfileReply`."""

    ticket: int


@dataclass(frozen=True)
class StopProfile:
    """Every rank writes its trace into the folder and answers with `ProfileReply`."""

    ticket: int
    folder: str


@dataclass(frozen=True)
class Close:
    """Every rank ends."""


Command = Submit | Cancel | AskStats | StartProfile | StopProfile | Close


@dataclass(frozen=True)
class Ready:
    """The rank has loaded its models. `description`: see `load.describe`."""

    description: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """The rank ends with this traceback. `error_type`: name of the class in fastverify.errors, where it is one of ours:
    then the settings are to blame. `is_consequence`: it only noticed that another rank is gone."""

    message: str
    traceback: str
    error_type: str | None
    is_consequence: bool


@dataclass(frozen=True)
class Events:
    """What one step produced."""

    events: tuple[TokenEvent, ...]


@dataclass(frozen=True)
class StatsReply:
    """Answer to `AskStats`."""

    ticket: int
    stats: EngineStats


@dataclass(frozen=True)
class ProfileReply:
    """Answer to `StartProfile` (no path) and `StopProfile`. `error`: why there is no file although one was asked."""

    ticket: int
    path: str | None
    error: str | None = None


Report = Ready | Failed | Events | StatsReply | ProfileReply


@dataclass(frozen=True)
class _Forwarded:
    """Commands that take effect at `step`; `is_last` when no more will come for that step."""

    step: int
    is_last: bool
    commands: tuple[Command, ...]


class CommandStream(Protocol):
    """Gives every rank the same commands at the same step. Raises EOFError when the sender is gone."""

    def take(self, step: int, *, is_idle: bool, must_meet: bool) -> list[Command]:
        """Commands of this step. Waits for one when idle. `must_meet`: the step before had no collective."""
        ...


class LeaderStream:
    """Rank 0's: from the owner, on to the other ranks."""

    def __init__(self, owner: Connection, followers: Sequence[Connection]) -> None:
        self._owner = _Inbox(owner)
        self._followers = followers
        self._due: list[Command] = []

    def take(self, step: int, *, is_idle: bool, must_meet: bool) -> list[Command]:
        """See `CommandStream`."""
        due, self._due = self._due, []
        received: list[Command] = []
        if is_idle and not due:
            received.append(self._owner.receive())
        while self._owner.has_message():
            received.append(self._owner.receive())
        if is_idle or must_meet:
            self._forward(_Forwarded(step, True, tuple(received)))
            return due + received
        if received:
            self._forward(_Forwarded(step + 1, False, tuple(received)))
            self._due = received
        return due

    def _forward(self, forwarded: _Forwarded) -> None:
        for follower in self._followers:
            follower.send(forwarded)


class FollowerStream:
    """Every other rank's: from rank 0."""

    def __init__(self, leader: Connection) -> None:
        self._leader = _Inbox(leader)
        self._early: list[_Forwarded] = []

    def take(self, step: int, *, is_idle: bool, must_meet: bool) -> list[Command]:
        """See `CommandStream`."""
        arrived, self._early = self._early, []
        while self._leader.has_message():
            arrived.append(self._leader.receive())
        while (is_idle or must_meet) and not any(f.is_last and f.step == step for f in arrived):
            arrived.append(self._leader.receive())
        self._early = [forwarded for forwarded in arrived if forwarded.step > step]
        return [command for forwarded in arrived if forwarded.step == step for command in forwarded.commands]


class _Inbox:
    """A connection whose `has_message` is one system call; `Connection.poll` builds a selector each time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)

    def has_message(self) -> bool:
        """Whether `receive` would return, or raise EOFError, at once."""
        return bool(self._poller.poll(0))

    def receive(self) -> Any:
        """The next message, waiting for it."""
        return self._connection.recv()
