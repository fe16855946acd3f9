"""`fastverify serve` with a tiny random model on two ranks: what only a real engine can get wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

from fastverify.models.kernels import describe_kernels
from tests.servers.tiny_model import write_tiny_model

pytestmark = [pytest.mark.server, pytest.mark.ranks]


def wait_until(condition: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def launch(folder: Path, log_path: Path) -> subprocess.Popen[str]:
    model = write_tiny_model(folder / "model")
    argv = [
        *(sys.executable, "-m", "fastverify", "serve", "--port", "0", "--max-seq-len", "512"),
        *("--model", model["model"], "--draft", model["draft"], "--comm-backend", "shm"),
    ]
    with log_path.open("wb") as log:
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)


class Served:
    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "server.log"
        self.popen = launch(folder, self.log_path)
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert re.fullmatch(r"fastverify: listening on http://127\.0\.0\.1:\d+\n", line), self.log_path.read_text()
        self.client = httpx.Client(base_url=line.split()[-1], timeout=60, trust_env=False)

    def complete(self, prompt: str, **fields: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True, **fields}
        response = self.client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def close(self) -> None:
        self.client.close()
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


def test_64_clients_get_what_one_at_a_time_gets(served: Served) -> None:
    def ask(number: int) -> list[int]:
        prompt = f"def f{number % 8}(x):" + " " * (number % 8)
        token_ids: list[int] = served.complete(prompt, speculative=number % 2 == 0)["choices"][0]["token_ids"]
        return token_ids

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == alone * 8


def test_chat_and_stream_agree(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "What is a list?"}], "max_tokens": 20, "temperature": 0}
    whole = served.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    stream = served.client.post("/v1/chat/completions", json=body | {"stream": True}).text
    chunks = [json.loads(event.removeprefix("data: ")) for event in stream.split("\n\n") if "delta" in event]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole


def test_same_seed_same_sample(served: Served) -> None:
    samples = [served.complete("x = ", temperature=1.0, seed=seed)["choices"][0]["token_ids"] for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]


def test_client_that_goes_away_frees_its_place(served: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        served.client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 500}, timeout=0.1)
    wait_until(lambda: "fastverify:requests_running 0.0" in served.client.get("/metrics").text)
    assert 'fastverify:request_total{finish_reason="cancelled"} 1.0' in served.client.get("/metrics").text


def test_info_says_what_auto_became(served: Served) -> None:
    info = served.client.get("/server_info").json()
    assert info["resolved"]["comm_backend"] == "shm"
    assert info["resolved"]["kernels"] == describe_kernels(torch.float32)
    assert info["settings"]["num_proposed_drafts"] == 3
    assert info["model"]["num_layers"] == 4
    assert info["versions"]["torch"]


def test_term_finishes_the_running_request_and_leaves_no_process(served: Served) -> None:
    ranks = psutil.Process(served.popen.pid).children(recursive=True)
    assert len(ranks) == 2
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.complete, "abc", max_tokens=150, ignore_eos=True)
        wait_until(lambda: "fastverify:requests_running 1.0" in served.client.get("/metrics").text)
        served.popen.send_signal(signal.SIGTERM)
        assert answer.result()["usage"]["completion_tokens"] == 150
    assert served.popen.wait(timeout=20) == 0
    assert psutil.wait_procs(ranks, timeout=5)[1] == []


def test_dead_rank_is_seen_by_health_and_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    served = Served(tmp_path)
    try:
        ranks = psutil.Process(served.popen.pid).children(recursive=True)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.client.post, "/v1/completions", json={"prompt": "a", "max_tokens": 500})
            wait_until(lambda: "fastverify:requests_running 1.0" in served.client.get("/metrics").text)
            os.kill(ranks[-1].pid, signal.SIGKILL)
            assert answer.result().status_code == 500
        wait_until(lambda: served.client.get("/health").status_code == 503)
        assert served.popen.wait(timeout=20) == 2
        assert re.search(r"fastverify: .*rank \d", served.log_path.read_text())
        assert psutil.wait_procs(ranks, timeout=5)[1] == []
    finally:
        served.close()


def test_term_before_it_listens_leaves_no_process(tmp_path: Path) -> None:
    with launch(tmp_path, tmp_path / "server.log") as popen:
        wait_until(lambda: len(psutil.Process(popen.pid).children()) == 2)
        ranks = psutil.Process(popen.pid).children()
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(timeout=20) == 128 + signal.SIGTERM
        assert psutil.wait_procs(ranks, timeout=5)[1] == []
    assert (tmp_path / "server.log").read_text() == ""
