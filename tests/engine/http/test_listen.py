"""The server as a process: drain on SIGTERM, exit codes, a dead rank, a port that is taken."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from fastverify.engine.http.http_config import HttpConfig
from fastverify.engine.http.listen import bind, url_of
from fastverify.errors import ConfigError, ServerError

pytestmark = pytest.mark.server


class Process:
    def __init__(self, *flags: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.http.fake_engine", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        self.url = self.popen.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", self.url)

    def complete(self, num_tokens: int) -> httpx.Response:
        body = {"prompt": "abc", "max_tokens": num_tokens}
        return httpx.post(self.url + "/v1/completions", json=body, timeout=30, trust_env=False)

    def wait(self) -> tuple[int, str]:
        _, stderr = self.popen.communicate(timeout=30)
        return self.popen.returncode, stderr


@contextmanager
def running(*flags: str) -> Iterator[Process]:
    process = Process(*flags)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.communicate()


def test_term_finishes_what_runs_takes_no_more_and_exits_0() -> None:
    with running("--step-s=0.05") as process, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(process.complete, 60)
        time.sleep(0.3)
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            httpx.get(process.url + "/health", trust_env=False)
        assert answer.result().json()["usage"]["completion_tokens"] == 60
        assert process.wait()[0] == 0


@pytest.mark.parametrize("flags", [("--drain-timeout-s=0.3",), ()])
def test_grace_and_second_signal_end_the_drain(flags: tuple[str, ...]) -> None:
    with running("--step-s=1", *flags) as process, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(process.complete, 900)
        time.sleep(0.3)
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        if not flags:
            process.popen.send_signal(signal.SIGTERM)
        start_s = time.monotonic()
        assert process.wait()[0] == 0
        assert time.monotonic() - start_s < 5
        assert answer.result().json()["error"]["message"] == "the server was stopped before this request finished."


def test_dead_rank_shows_in_health_then_ends_the_process_with_its_traceback() -> None:
    with running("--step-s=0.02", "--die-after-s=0.2") as process:
        assert process.complete(900).status_code == 500
        health = httpx.get(process.url + "/health", trust_env=False)
        assert (health.status_code, health.json()["reason"]) == (503, "rank 1 died:")
        code, stderr = process.wait()
        assert code == 2
        assert "ValueError: boom in rank 1" in stderr


def test_taken_port_is_an_error_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port} cannot be used: Address .* --port 0"):
            bind(HttpConfig(port=port))


def test_free_port_and_loopback_by_default() -> None:
    with bind(HttpConfig(port=0)) as sock:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url_of(sock))


@pytest.mark.parametrize(
    "values", [{"port": 70_000}, {"port": -1}, {"max_open_requests": 0}, {"drain_timeout_s": float("nan")}]
)
def test_settings_break_rules_with_their_names(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        HttpConfig(**values)  # type: ignore[arg-type]
