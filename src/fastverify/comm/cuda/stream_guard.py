"""Refuses two streams on one workspace: the all-reduce is only safe when a rank's calls run one after the other.

The rule, for the calls that the CPU makes:
1. The stream of the last eager call may go on, eager or captured, at the price of one comparison.
2. Another stream may take over for eager calls once all work of the last one has ended, or is just about to.
3. A capture may use one stream, whichever it is, unless the capture has spread to the stream of the eager calls.
Waiting for an event of the first stream is not enough, since the driver does not tell who waits for whom: synchronise
the first stream. Replays of a graph cannot be seen from here: replay on the stream of the eager calls, or synchronise
in between. Streams are known by their handles.
"""

from __future__ import annotations

import time
from typing import Protocol

from fastverify.comm.cuda.driver_calls import DriverError, call_driver, open_driver
from fastverify.errors import UnsupportedError

NOT_CAPTURING = 0
# Arbitrary: servers warm up on one stream and go on with another; what they have queued ends in a few milliseconds.
GRACE_S = 0.02
_POLL_S = 0.0005


class StreamQueries(Protocol):
    """What the guard asks the driver when the stream changes."""

    def capture_id(self, stream: int) -> int:
        """Number of the capture that the stream is part of, or NOT_CAPTURING."""
        ...

    def is_done(self, stream: int) -> bool:
        """Whether all work of the stream has ended; asked only outside captures."""
        ...


class DriverStreamQueries:
    """The answers of the CUDA driver."""

    def capture_id(self, stream: int) -> int:
        """See StreamQueries. The legacy stream says nothing while others capture: it is not part of it itself."""
        driver = open_driver()
        try:
            status, capture_id, *_ = call_driver("cuStreamGetCaptureInfo", driver.CUstream(stream))
        except DriverError:
            return NOT_CAPTURING
        is_active = status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        return int(capture_id) if is_active else NOT_CAPTURING

    def is_done(self, stream: int) -> bool:
        """See StreamQueries. A stream that cannot be asked counts as busy."""
        try:
            call_driver("cuStreamQuery", open_driver().CUstream(stream))
        except DriverError:
            return False
        return True


class StreamGuard:
    """Admits the stream of each call of one workspace, or raises."""

    def __init__(self, rank: int, queries: StreamQueries | None = None) -> None:
        self._rank = rank
        self._queries: StreamQueries = queries or DriverStreamQueries()
        self._eager: int | None = None
        self._captured: tuple[int, int] = (NOT_CAPTURING, 0)

    def admit(self, stream: int) -> None:
        """Call it with the handle of the stream just before a launch. Raises UnsupportedError for a second stream."""
        if stream == self._eager:
            return
        capture_id = self._queries.capture_id(stream)
        if capture_id != NOT_CAPTURING:
            self._admit_captured(capture_id, stream)
        else:
            self._admit_eager(stream)

    def _admit_captured(self, capture_id: int, stream: int) -> None:
        first = self._captured[1] if self._captured[0] == capture_id else stream
        if self._eager is not None and self._queries.capture_id(self._eager) == capture_id:
            first = self._eager
        if first != stream:
            raise UnsupportedError(
                f"a workspace of the CUDA all-reduce is captured on one stream per graph: rank {self._rank} works on "
                f"stream {first:#x} of this capture, got a call on stream {stream:#x}. Make all calls of the graph on "
                f"one stream, or create a second communicator."
            )
        self._captured = (capture_id, stream)

    def _admit_eager(self, stream: int) -> None:
        if self._eager is not None and not self._has_ended(self._eager):
            raise UnsupportedError(
                f"a workspace of the CUDA all-reduce works on one stream at a time: work on stream {self._eager:#x} of "
                f"rank {self._rank} has not ended, got a call on stream {stream:#x}. Synchronise the first stream "
                f"(an event is not enough), or create a second communicator."
            )
        self._eager = stream

    def _has_ended(self, stream: int) -> bool:
        # A query of a stream under capture would break the capture.
        if self._queries.capture_id(stream) != NOT_CAPTURING:
            return False
        deadline_s = time.monotonic() + GRACE_S
        while not (is_done := self._queries.is_done(stream)) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return is_done
