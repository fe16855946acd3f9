"""A healthy server behind a URL: what servers with `/server_info`, `/metrics` and profiler endpoints have in common.

Knows no flags and no metric names: a subclass adds the arms and the request fields of its server.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from fastverify.errors import ServerError
from fastverify.servers.failures import answer_failure, request_failure
from fastverify.servers.metrics import MetricsPage, parse_metrics
from fastverify.servers.process import ServerProcess
from fastverify.servers.server import Setting

# Arbitrary: metrics and settings are answered between two cycles; a profile of a long run takes seconds to write.
ANSWER_TIMEOUT_S = 30.0
PROFILE_TIMEOUT_S = 300.0


class HttpServer:
    """Common half of RunningServer; `arms` and `request_fields` are the subclass's."""

    def __init__(self, process: ServerProcess, url: str) -> None:
        self.url = url
        self._process = process
        self._client = httpx.Client(base_url=url, timeout=ANSWER_TIMEOUT_S, trust_env=False)
        self._settings = self._read_settings()

    def settings(self) -> dict[str, Setting]:
        """Settings after resolution: what was asked, overlaid with what "auto" became."""
        return dict(self._settings)

    def metrics(self) -> MetricsPage:
        """Its metrics page now."""
        return parse_metrics(self.request("GET", "/metrics").text)

    def start_profile(self, output_dir: Path) -> None:
        """Begin recording on every rank."""
        self.request("POST", "/start_profile", json={"output_dir": str(output_dir)}, timeout_s=PROFILE_TIMEOUT_S)

    def stop_profile(self) -> tuple[Path, ...]:
        """End recording and return one file per rank."""
        answer = self.request("POST", "/stop_profile", timeout_s=PROFILE_TIMEOUT_S).json()
        return tuple(Path(name) for name in answer["files"])

    def log_tail(self, num_lines: int = 40) -> str:
        """The last lines that the server wrote."""
        return self._process.log_tail(num_lines)

    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process.is_alive()

    def exit_code(self) -> int | None:
        """None while its process runs."""
        return self._process.exit_code

    def stop(self) -> None:
        """End the server and everything it started."""
        self._client.close()
        self._process.stop()

    def request(
        self, method: str, path: str, *, json: object = None, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> httpx.Response:
        """One request to the server. Raises the ServerError that says what went wrong."""
        if self._client.is_closed:
            raise ServerError(f"{method} {path} needs a running server, but it was stopped. Launch another one.")
        try:
            response = self._client.request(method, path, json=json, timeout=timeout_s)
        except httpx.TransportError as error:
            raise request_failure(self, f"{method} {path}", error) from error
        if response.status_code != httpx.codes.OK:
            raise answer_failure(self, f"{method} {path}", response.status_code, response.text)
        return response

    def _read_settings(self) -> dict[str, Setting]:
        info: dict[str, Any] = self.request("GET", "/server_info").json()
        merged = {**info["settings"], **info["resolved"]}
        return {name: value for name, value in merged.items() if isinstance(value, str | int | float | bool)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
