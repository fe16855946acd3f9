"""The HTTP surface over a fake engine on a real socket: answers, streams, errors, cancels, many clients."""

import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.http.conftest import Running, Servers
from tests.engine.http.fake_engine import answer_of


def expected(prompt: str, num_tokens: int) -> str:
    return answer_of(prompt.encode())[:num_tokens].decode(errors="replace")


def complete(server: Running, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 8, **fields})


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_completion(server: Running) -> None:
    answer = complete(server, return_token_ids=True, model="fake", temperature=0).json()
    choice = answer["choices"][0]
    assert choice["text"] == expected("abc", 8)
    assert choice["token_ids"] == list(answer_of(b"abc")[:8])
    assert (choice["finish_reason"], answer["object"]) == ("length", "text_completion")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert answer["fastverify"]["accept_length"] == 3.0


def test_fields_reach_the_engine(server: Running) -> None:
    complete(server, prompt=[65, 66], temperature=0.5, seed=7, stop_token_ids=[3], ignore_eos=True, speculative=False)
    request = server.engine.submitted[-1]
    sampling = request.sampling
    assert (request.prompt_token_ids, request.speculative) == ((65, 66), False)
    assert (sampling.temperature, sampling.seed, sampling.stop_token_ids) == (0.5, 7, (3,))
    assert (sampling.ignore_eos, sampling.max_tokens) == (True, 8)


def test_stream_joins_to_the_whole_answer(server: Running) -> None:
    response = complete(server, stream=True, max_tokens=25, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == expected("abc", 25)
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 8 + ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 25
    assert chunks[-2]["fastverify"]["num_output_tokens"] == 25
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_chat_uses_the_plain_template_and_ends_at_the_next_question(server: Running) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    body = {"messages": messages, "max_tokens": 4}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    prompt = "Be brief.\n\nQ: Hi\nA:"
    assert bytes(server.engine.submitted[-1].prompt_token_ids).decode() == prompt
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected(prompt, 4)}
    # The reversed prompt holds ":A\niH :Q", never "\nQ:", so a question is put in backwards to find one.
    backwards = {"messages": [{"role": "user", "content": "x:Q\ny"}], "max_tokens": 100}
    answer = server.client.post("/v1/chat/completions", json=backwards).json()
    assert answer["choices"][0]["message"]["content"] == ":A\ny"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_chat_stream(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10, "stream": True}
    chunks = events(server.client.post("/v1/chat/completions", json=body))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == expected("Q: Hi\nA:", 10)


def test_chat_without_max_tokens_fills_the_context(server: Running) -> None:
    server.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    request = server.engine.submitted[-1]
    assert request.sampling.max_tokens + len(request.prompt_token_ids) == 1024


def test_stop_text_inside_a_step_ends_the_request_in_the_engine(servers: Servers) -> None:
    server = servers.start(step_s=0.01)
    answer = complete(server, prompt="olleh dlrow", stop=["zzz", "d he"], max_tokens=900).json()
    assert answer["choices"][0] | {"logprobs": 0} == {
        "index": 0,
        "text": "worl",
        "logprobs": 0,
        "finish_reason": "stop",
    }
    # "world he" has the eighth token in the third step of three.
    assert answer["usage"]["completion_tokens"] == 8
    assert server.engine.cancelled == [server.engine.submitted[0].request_id]
    assert 'fastverify:request_total{finish_reason="stop"} 1.0' in server.client.get("/metrics").text


def test_utf8_is_never_cut_inside_a_stream(server: Running) -> None:
    chunks = events(complete(server, prompt="a", stream=True, max_tokens=30))
    assert not any("\ufffd" in chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"max_token": 5}, 400, "max_token", "unknown field 'max_token'. Known fields: best_of"),
        ({"n": 2}, 400, "n", "n must be 1 or absent"),
        ({"n": True}, 400, "n", "n must be 1 or absent: this engine does not have it, got True"),
        ({"echo": 0}, 400, "echo", "echo must be False or absent"),
        ({"top_p": 0.9}, 400, "top_p", "top_p must be 1"),
        ({"logprobs": 5}, 400, "logprobs", "logprobs must be False or 0 or absent"),
        ({"logit_bias": {str(i): 1 for i in range(999)}}, 400, "logit_bias", "'9': 1,...."),
        ({"max_token": None}, 400, "max_token", "unknown field 'max_token'"),
        ({"prompt": None}, 400, "prompt", "is required"),
        ({"prompt": ""}, 400, "prompt", "at least one token"),
        ({"prompt": ["a", "b"]}, 400, "prompt", "one prompt per request, got 2"),
        ({"prompt": {"a": 1}}, 400, "prompt", "a text or a non-empty list of token ids, got dict"),
        ({"prompt": [1, 256]}, 400, "prompt", "0..255, got 256"),
        ({"prompt": [True]}, 400, "prompt", "a text or a non-empty list"),
        ({"stop_token_ids": [-1]}, 400, "stop_token_ids", "0..255, got -1"),
        ({"prompt": "x" * 1024}, 400, "prompt", "at most 1024 tokens, got a prompt of 1024 and max_tokens of 8"),
        ({"max_tokens": 1022}, 400, "max_tokens", "got a prompt of 3 and max_tokens of 1022"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1, got 0"),
        ({"max_tokens": "8"}, 400, "max_tokens", "valid integer, got '8'"),
        ({"temperature": -1}, 400, "temperature", "greater than or equal to 0, got -1"),
        ({"stop": ["a", ""]}, 400, "stop", "none of them empty"),
        ({"stream_options": {"include_usage": True}}, 400, None, "needs stream to be true"),
        ({"model": "gpt-9"}, 404, "model", "this server has the model 'fake', got 'gpt-9'"),
        ({"prompt": "x" * 30_000}, 413, None, "at most 20000 bytes"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_an_error_that_names_the_field(
    server: Running, fields: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    num_submitted = len(server.engine.submitted)
    response = complete(server, **fields)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] == param
    assert len(server.engine.submitted) == num_submitted


def test_neutral_values_of_what_is_missing_are_accepted(server: Running) -> None:
    neutral = {"n": 1, "top_p": 1.0, "logprobs": None, "presence_penalty": 0, "logit_bias": {}, "user": "me"}
    assert complete(server, **neutral).status_code == 200


def test_null_is_the_default(server: Running) -> None:
    fields = ("temperature", "max_tokens", "stream", "stream_options", "stop", "seed", "n", "stop_token_ids")
    answer = complete(server, **dict.fromkeys(fields))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 16
    assert server.engine.submitted[-1].sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [(b"{", "application/json", 400), (b"[]", "application/json", 400), (b'{"prompt": "a"}', "text/plain", 415)],
)
def test_bodies_that_are_no_json_object(server: Running, content: bytes, content_type: str, status: int) -> None:
    response = server.client.post("/v1/completions", content=content, headers={"Content-Type": content_type})
    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_wrong_path_and_method_answer_in_the_same_format(server: Running) -> None:
    assert server.client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert server.client.get("/v1/completions").status_code == 405


def test_error_of_one_request_is_its_own(server: Running) -> None:
    response = complete(server, prompt="explode")
    assert (response.status_code, response.json()["error"]["message"]) == (500, "a bug in this request")
    assert complete(server, prompt="explode", stream=True).status_code == 500
    assert complete(server).status_code == 200


def test_64_clients_each_get_their_own_answer(servers: Servers) -> None:
    server = servers.start(step_s=0.002)

    def ask(number: int) -> bool:
        prompt = f"client {number}"
        response = complete(server, prompt=prompt, max_tokens=40, stream=number % 2 == 0)
        if number % 2:
            return bool(response.json()["choices"][0]["text"] == expected(prompt, 40))
        return "".join(c["choices"][0]["text"] for c in events(response)) == expected(prompt, 40)

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(ask, range(64)))


def test_full_queue_is_429_and_frees_itself(servers: Servers) -> None:
    server = servers.start(step_s=0.05, max_open_requests=2)
    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(pool.map(lambda _: complete(server, max_tokens=9).status_code, range(6)))
    assert statuses[:2] == [200, 200]
    assert statuses[-1] == 429
    assert complete(server).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_goes_away_is_cancelled_in_the_engine(servers: Servers, stream: bool) -> None:
    server = servers.start(step_s=0.02)
    body = {"prompt": "abc", "max_tokens": 900, "stream": stream}
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        if stream:
            with client.stream("POST", "/v1/completions", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body, timeout=0.2)
    wait_until(lambda: bool(server.engine.cancelled))
    assert server.engine.cancelled == [server.engine.submitted[0].request_id]


def test_dead_rank_ends_waiting_requests_and_health(servers: Servers) -> None:
    server = servers.start(step_s=0.02)
    assert server.client.get("/health").status_code == 200
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(complete, server, max_tokens=900)
        stream = pool.submit(complete, server, max_tokens=900, stream=True)
        wait_until(lambda: len(server.engine.submitted) == 2)
        time.sleep(0.1)
        server.engine.dies = True
        assert whole.result().status_code == 500
        assert "rank 1 died" in whole.result().json()["error"]["message"]
        assert events(stream.result())[-1]["error"]["message"] == "the engine failed: rank 1 died:"
    assert server.client.get("/health").status_code == 503
    assert complete(server).status_code == 503
    assert server.client.get("/metrics").status_code == 503


def test_models_and_info(server: Running) -> None:
    model = server.client.get("/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("fake", 1024)
    assert server.client.get("/server_info").json()["settings"] == {"drafter": "eagle3"}


def test_profile(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert server.client.post("/stop_profile").status_code == 400
    assert server.client.post("/start_profile", json={"output_dir": str(tmp_path)}).status_code == 200
    assert server.client.post("/stop_profile").json() == {"files": [str(tmp_path / "rank0.json.gz")]}
    assert server.client.post("/start_profile", json={"folder": "x"}).status_code == 400
    assert server.client.post("/start_profile", json={"output_dir": "a\0b"}).status_code == 400
    assert "fastverify-profile-" in server.client.post("/start_profile").json()["output_dir"]
