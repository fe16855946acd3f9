"""All ranks take the same commands at the same step, however far a rank runs ahead of the next collective."""

from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest

from fastverify.engine.commands import Cancel, Close, Command, FollowerStream, LeaderStream


class Streams:
    """A leader and a follower in one thread; the follower is always asked second."""

    def __init__(self) -> None:
        self.owner, leader_end = Pipe()
        receiver, sender = Pipe(duplex=False)
        self.ends: list[Connection] = [self.owner, leader_end, receiver, sender]
        self.leader = LeaderStream(leader_end, [sender])
        self.follower = FollowerStream(receiver)

    def take(self, step: int, **state: Any) -> list[Command]:
        """What both get; they must agree."""
        commands = self.leader.take(step, **state)
        assert self.follower.take(step, **state) == commands
        return commands


@pytest.fixture
def streams() -> Iterator[Streams]:
    made = Streams()
    yield made
    for end in made.ends:
        end.close()


BUSY = {"is_idle": False, "must_meet": False}
IDLE = {"is_idle": True, "must_meet": False}
NOT_MET = {"is_idle": False, "must_meet": True}


def test_while_busy_a_command_takes_effect_one_step_later(streams: Streams) -> None:
    streams.owner.send(Cancel("a"))
    assert streams.take(4, **BUSY) == []
    assert streams.take(5, **BUSY) == [Cancel("a")]
    assert streams.take(6, **BUSY) == []


def test_a_follower_that_is_behind_does_not_take_the_leaders_next_commands(streams: Streams) -> None:
    streams.owner.send(Cancel("a"))
    assert streams.leader.take(4, **BUSY) == []
    streams.owner.send(Cancel("b"))
    assert streams.leader.take(5, **BUSY) == [Cancel("a")]
    assert streams.follower.take(4, **BUSY) == []
    assert streams.follower.take(5, **BUSY) == [Cancel("a")]
    assert streams.take(6, **BUSY) == [Cancel("b")]


def test_an_idle_engine_takes_a_command_at_once(streams: Streams) -> None:
    streams.owner.send(Cancel("a"))
    streams.owner.send(Close())
    assert streams.take(0, **IDLE) == [Cancel("a"), Close()]


def test_a_command_of_the_last_busy_step_is_not_lost_when_idle(streams: Streams) -> None:
    streams.owner.send(Cancel("a"))
    assert streams.take(7, **BUSY) == []
    assert streams.take(8, **IDLE) == [Cancel("a")]
    streams.owner.send(Cancel("b"))
    assert streams.take(9, **IDLE) == [Cancel("b")]


def test_after_a_step_without_collectives_the_ranks_meet_in_the_pipe(streams: Streams) -> None:
    streams.owner.send(Cancel("a"))
    assert streams.take(2, **BUSY) == []
    streams.owner.send(Cancel("b"))
    assert streams.take(3, **NOT_MET) == [Cancel("a"), Cancel("b")]
    assert streams.take(4, **NOT_MET) == []


def test_the_end_of_the_owner_is_noticed(streams: Streams) -> None:
    streams.owner.close()
    with pytest.raises(EOFError):
        streams.leader.take(0, **IDLE)
