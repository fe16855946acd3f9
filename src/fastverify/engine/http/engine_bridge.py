"""Between the engine's blocking calls and asyncio: one thread drains events, one runs commands in order.

A request is a `TokenStream` of events. When a rank dies, every open stream gets an error event, later submits are
refused, and `failure` holds the exception for /health and for the process's exit. Knows no HTTP and no text.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastverify.engine.request import Request, TokenEvent
from fastverify.errors import ConfigError, FastverifyError, WorkerDiedError

logger = logging.getLogger(__name__)

# Arbitrary: how late the drain thread may notice that it should end.
EVENT_WAIT_S = 0.2
Result = TypeVar("Result")


class EngineLike(Protocol):
    """What the server needs of an engine; tests give a fake one."""

    def submit(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def next_event(self, timeout_s: float) -> TokenEvent | None: ...

    def stats(self) -> Any: ...

    def start_profile(self) -> None: ...

    def stop_profile(self, folder: Path) -> list[Path]: ...


class QueueFullError(FastverifyError):
    """More requests than the server takes at a time."""


class TokenStream:
    """Events of one request, in order; ends after the event that says `finished`."""

    def __init__(self, bridge: EngineBridge, request_id: str) -> None:
        self._bridge = bridge
        self._queue: asyncio.Queue[TokenEvent] = asyncio.Queue()
        self.request_id = request_id
        self.is_finished = False
        self.ends_at_stop_text = False
        """Set by `end_at_stop_text`: then the engine's "cancelled" is a "stop" to the client, and so it is counted."""

    def put(self, event: TokenEvent) -> None:
        """Called by the bridge in the event loop's thread."""
        self.is_finished = self.is_finished or event.finished
        self._queue.put_nowait(event)

    async def next_event(self) -> TokenEvent:
        """The next event. Must not be called after the finished one."""
        return await self._queue.get()

    def cancel(self) -> None:
        """Ask the engine to drop the request; harmless when it has finished. The last event still comes."""
        if not self.is_finished:
            self._bridge.cancel(self.request_id)

    def end_at_stop_text(self) -> None:
        """Cancel a request that is complete, because its answer has reached one of its stop texts."""
        self.ends_at_stop_text = True
        self.cancel()


class EngineBridge:
    """Owns the two threads; lives as long as the HTTP server."""

    def __init__(self, engine: EngineLike, max_open_requests: int) -> None:
        self._engine = engine
        self._max_open_requests = max_open_requests
        self._streams: dict[str, TokenStream] = {}
        self._commands = ThreadPoolExecutor(1, thread_name_prefix="engine-commands")
        self._drain = threading.Thread(target=self._drain_events, name="engine-events", daemon=True)
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._profile_folder: Path | None = None
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self.finish_reasons: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to drain events into the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._drain.start()

    async def close(self) -> None:
        """End both threads; the engine stays open."""
        self._closing.set()
        await asyncio.to_thread(self._drain.join)
        self._commands.shutdown(wait=False, cancel_futures=True)

    async def submit(self, request: Request) -> TokenStream:
        """Hand a request to the engine.

        Raises: QueueFullError; WorkerDiedError after a rank died; what the engine says about a wrong request.
        """
        if len(self._streams) >= self._max_open_requests:
            raise QueueFullError(
                f"the server takes {self._max_open_requests} requests at a time and has as many. Try again later."
            )
        stream = TokenStream(self, request.request_id)
        self._streams[request.request_id] = stream
        try:
            await self.command(lambda: self._engine.submit(request))
        except BaseException:
            self._streams.pop(request.request_id, None)
            self._engine_cancel_later(request.request_id)
            raise
        return stream

    def cancel(self, request_id: str) -> None:
        """Ask the engine to drop a request; never waits."""
        self._engine_cancel_later(request_id)

    def end_streams(self, message: str) -> None:
        """Give every open stream an error as its last event."""
        for request_id in list(self._streams):
            self.cancel(request_id)
            self._deliver(TokenEvent(request_id, (), finished=True, finish_reason="error", error=message))

    async def command(self, call: Callable[[], Result]) -> Result:
        """Run one blocking call of the engine after all earlier ones. Raises WorkerDiedError after a rank died."""
        if self.failure is not None:
            raise WorkerDiedError(f"the engine has failed: {_first_line(self.failure)}") from self.failure
        assert self._loop is not None, "start() comes first"
        return await self._loop.run_in_executor(self._commands, call)

    def stats(self) -> dict[str, Any]:
        """Statistics of the engine as plain values; run it with `command`."""
        document: dict[str, Any] = self._engine.stats().to_dict()
        return document

    def start_profile(self, folder: Path) -> None:
        """Begin recording into `folder`; run it with `command`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._engine.start_profile()
        self._profile_folder = folder

    def stop_profile(self) -> list[Path]:
        """End recording and return one file per rank; run it with `command`. Raises ConfigError if none runs."""
        folder, self._profile_folder = self._profile_folder, None
        if folder is None:
            raise ConfigError("a profile is stopped after it was started, but none is recording.")
        return self._engine.stop_profile(folder)

    def _engine_cancel_later(self, request_id: str) -> None:
        if self.failure is None and not self._closing.is_set():
            self._commands.submit(self._cancel_or_log, request_id)

    def _cancel_or_log(self, request_id: str) -> None:
        try:
            self._engine.cancel(request_id)
        except FastverifyError as error:
            logger.info("request %s could not be cancelled: %s", request_id, error)

    def _drain_events(self) -> None:
        assert self._loop is not None, "start() comes first"
        try:
            while not self._closing.is_set():
                event = self._engine.next_event(EVENT_WAIT_S)
                if event is not None:
                    self._loop.call_soon_threadsafe(self._deliver, event)
        except Exception as error:  # noqa: BLE001 - whatever ends this thread ends the server, with its traceback
            if not self._closing.is_set():
                self._loop.call_soon_threadsafe(self._fail, error)

    def _deliver(self, event: TokenEvent) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return
        stream.put(event)
        if event.finished:
            del self._streams[event.request_id]
            reason = event.finish_reason or "error"
            self.finish_reasons["stop" if stream.ends_at_stop_text and reason == "cancelled" else reason] += 1

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        logger.error("the engine failed: waiting requests get errors, then the server ends.")
        self.end_streams(f"the engine failed: {_first_line(error)}")
        self.failed.set()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
