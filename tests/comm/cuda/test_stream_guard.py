"""The guard's rules over streams that a test moves from state to state; no GPU."""

from dataclasses import dataclass, field

import pytest

from fastverify.comm.cuda.stream_guard import NOT_CAPTURING, StreamGuard
from fastverify.errors import UnsupportedError

FIRST, SECOND = 0xA, 0xB


@dataclass
class FakeStreams:
    """Which capture each stream is in, and which streams still have work; counts what it is asked."""

    captures: dict[int, int] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    ends_after: int = 0
    questions: int = 0

    def capture_id(self, stream: int) -> int:
        self.questions += 1
        return self.captures.get(stream, NOT_CAPTURING)

    def is_done(self, stream: int) -> bool:
        self.questions += 1
        assert stream not in self.captures, "a query of a stream under capture breaks the capture"
        if self.ends_after and self.questions > self.ends_after:
            self.busy.discard(stream)
        return stream not in self.busy


def open_guard() -> tuple[StreamGuard, FakeStreams]:
    streams = FakeStreams()
    return StreamGuard(3, streams), streams


def test_the_same_stream_costs_no_question() -> None:
    guard, streams = open_guard()
    guard.admit(FIRST)
    streams.questions, streams.busy = 0, {FIRST}
    for _ in range(100):
        guard.admit(FIRST)
    assert streams.questions == 0


def test_another_stream_must_wait_for_the_end_of_the_first() -> None:
    guard, streams = open_guard()
    guard.admit(FIRST)
    streams.busy = {FIRST}
    with pytest.raises(UnsupportedError, match="stream 0xa of rank 3 has not ended, got a call on stream 0xb"):
        guard.admit(SECOND)
    streams.busy = set()
    guard.admit(SECOND)
    streams.busy = {SECOND}
    with pytest.raises(UnsupportedError, match="0xb of rank 3 has not ended"):
        guard.admit(FIRST)


def test_a_stream_that_is_about_to_end_is_waited_for() -> None:
    guard, streams = open_guard()
    guard.admit(FIRST)
    streams.busy, streams.ends_after = {FIRST}, streams.questions + 5
    guard.admit(SECOND)


def test_a_capture_may_use_a_stream_of_its_own_while_the_first_is_busy() -> None:
    guard, streams = open_guard()
    guard.admit(FIRST)
    streams.busy, streams.captures = {FIRST}, {SECOND: 7}
    guard.admit(SECOND)
    guard.admit(SECOND)
    streams.captures = {}
    with pytest.raises(UnsupportedError, match="0xa of rank 3 has not ended"):
        guard.admit(SECOND)
    guard.admit(FIRST)


def test_a_capture_uses_one_stream() -> None:
    guard, streams = open_guard()
    streams.captures = {FIRST: 7, SECOND: 7}
    guard.admit(FIRST)
    with pytest.raises(UnsupportedError, match="works on stream 0xa of this capture, got a call on stream 0xb"):
        guard.admit(SECOND)
    streams.captures = {SECOND: 8}
    guard.admit(SECOND)


def test_a_capture_that_holds_the_eager_stream_stays_on_it() -> None:
    """The eager stream is admitted without a question, so its calls of this capture were not noted."""
    guard, streams = open_guard()
    guard.admit(FIRST)
    streams.captures = {FIRST: 7, SECOND: 7}
    guard.admit(FIRST)
    with pytest.raises(UnsupportedError, match="one stream per graph"):
        guard.admit(SECOND)


def test_an_eager_call_beside_a_capture_of_the_eager_stream_is_refused() -> None:
    guard, streams = open_guard()
    guard.admit(FIRST)
    streams.captures = {FIRST: 7}
    with pytest.raises(UnsupportedError, match="0xa of rank 3 has not ended"):
        guard.admit(SECOND)
