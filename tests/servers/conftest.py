from collections.abc import Iterator
from typing import Any

import pytest

from fastverify.servers.server import RunningServer, Server


@pytest.fixture(scope="module")
def running(
    server: Server, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A launch of the file's `server` with its `settings`."""
    log_path = tmp_path_factory.mktemp("log") / "server.log"
    with server.launch(server.launch_spec(settings), log_path) as running:
        yield running
