"""Runs the application until a signal or a dead rank: one listening socket, a drain, an exit code.

The first SIGTERM or SIGINT stops accepting and lets running requests finish within a grace; at its end, or at a second
signal, those that still run are answered with an error.
After a rank died the server keeps answering 503 for a moment, so that clients and health checks see why, then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from fastverify.engine.http.http_config import HttpConfig
from fastverify.engine.http.service import Service
from fastverify.errors import ServerError

logger = logging.getLogger(__name__)

# Arbitrary: long enough for waiting answers to be sent and for a health check to see the reason.
FAILURE_LINGER_S = 2.0
# Arbitrary: time to send the errors of requests that the grace did not suffice for.
LAST_ANSWERS_S = 1.0
STOPPED = "the server was stopped before this request finished."
BACKLOG = 512


def bind(config: HttpConfig) -> socket.socket:
    """The listening socket, taken before the model loads. Raises ServerError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ServerError(
            f"the server needs an address of its own, but {config.host}:{config.port} cannot be used: {reason}. "
            "Use --port 0 for a free port, or another --host."
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL that reaches a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(app: Starlette, config: HttpConfig, sock: socket.socket, on_listening: Callable[[str], None]) -> None:
    """Serve until told to stop. Raises what the engine died of."""
    service: Service = app.state.service
    url = url_of(sock)
    server = _Server(app, config, service, lambda: on_listening(url))
    asyncio.run(server.serve(sockets=[sock]))
    if service.bridge.failure is not None:
        raise service.bridge.failure


class _Server(uvicorn.Server):
    def __init__(self, app: Starlette, config: HttpConfig, service: Service, on_listening: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                backlog=BACKLOG,
                lifespan="on",
                timeout_graceful_shutdown=config.drain_timeout_s + LAST_ANSWERS_S,  # type: ignore[arg-type]
            )
        )
        self._service = service
        self._drain_timeout_s = config.drain_timeout_s
        self._on_listening = on_listening
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._end_after_failure())
        self._on_listening()

    async def _end_after_failure(self) -> None:
        await self._service.bridge.failed.wait()
        await asyncio.sleep(FAILURE_LINGER_S)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Begin to drain; uvicorn's own version would raise the signal again at the end and spoil the exit code."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        logger.info("%s: draining", number.name)
        grace_s = 0.0 if self._service.is_draining else self._drain_timeout_s
        asyncio.get_running_loop().call_later(grace_s, self._service.bridge.end_streams, STOPPED)
        self.should_exit = True
        self._service.is_draining = True
