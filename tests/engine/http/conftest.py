import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from fastverify.engine.http.app import build_app
from fastverify.engine.http.service import Service
from tests.engine.http.fake_engine import FakeEngine, make_service


class Running:
    """The application on a real socket, in a thread of this process."""

    def __init__(self, service: Service, engine: FakeEngine) -> None:
        self.engine = engine
        self._server = uvicorn.Server(uvicorn.Config(build_app(service), port=0, log_config=None, access_log=False))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=20, trust_env=False)

    def close(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()
        self.engine.close()


class Servers:
    """Starts applications and ends them with the test."""

    def __init__(self) -> None:
        self._running: list[Running] = []

    def start(self, step_s: float = 0.0, **changes: object) -> Running:
        engine = FakeEngine(step_s)
        self._running.append(Running(make_service(engine, **changes), engine))
        return self._running[-1]

    def close(self) -> None:
        for running in self._running:
            running.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One server for the tests of a file that leave it as it was."""
    servers = Servers()
    yield servers.start()
    servers.close()
