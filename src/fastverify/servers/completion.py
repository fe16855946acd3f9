"""One completion request to an OpenAI-compatible server, timed by the server itself or by the arrival of its chunks.

Whole answers disturb a small machine least and are timed by the server's own statistics (the `fastverify` field).
Servers without them must stream: then decode time runs from the first chunk to the last, and the tokens of the first
chunk do not count. Knows nothing of arms, loads or processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from fastverify.errors import ServerError


@dataclass(frozen=True)
class Completion:
    """What came back, and when."""

    token_ids: tuple[int, ...]
    text: str
    num_tokens: int
    ttft_s: float
    decode_s: float
    num_decode_tokens: int
    """Tokens that `decode_s` is the time of: all but the first, or all after the first chunk."""
    timing_source: Literal["server", "client"]
    accept_length: float | None


class AnswerError(ServerError):
    """The server answered with an HTTP error or an error inside a stream."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the server answered {status}: {text}")
        self.status = status
        self.text = text


def complete(client: httpx.Client, body: dict[str, Any], *, stream: bool) -> Completion:
    """Send one request. Raises AnswerError, or httpx.TransportError where no answer came."""
    return _complete_streaming(client, body) if stream else _complete_whole(client, body)


def _complete_whole(client: httpx.Client, body: dict[str, Any]) -> Completion:
    response = client.post("/v1/completions", json=body)
    if response.status_code != httpx.codes.OK:
        raise AnswerError(response.status_code, response.text)
    answer = response.json()
    stats = answer.get("fastverify")
    if stats is None:
        raise ServerError("a whole answer is timed by the server's own `fastverify` field, which is missing. Stream.")
    choice = answer["choices"][0]
    return _server_timed(choice.get("token_ids") or (), choice["text"], stats, ttft_s=stats["prefill_s"])


def _server_timed(token_ids: list[int] | tuple[()], text: str, stats: dict[str, Any], ttft_s: float) -> Completion:
    return Completion(
        token_ids=tuple(token_ids),
        text=text,
        num_tokens=stats["num_output_tokens"],
        ttft_s=ttft_s,
        decode_s=stats["decode_s"],
        num_decode_tokens=stats["num_output_tokens"] - 1,
        timing_source="server",
        accept_length=stats["accept_length"] if stats["num_verify_passes"] else None,
    )


def _complete_streaming(client: httpx.Client, body: dict[str, Any]) -> Completion:
    start_s = time.perf_counter()
    token_ids: list[int] = []
    texts: list[str] = []
    arrivals: list[tuple[float, int]] = []
    final: dict[str, Any] = {}
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/completions", json=request) as response:
        if response.status_code != httpx.codes.OK:
            raise AnswerError(response.status_code, response.read().decode(errors="replace"))
        for chunk in _events(response.iter_lines()):
            now_s = time.perf_counter()
            if "error" in chunk:
                raise AnswerError(httpx.codes.INTERNAL_SERVER_ERROR, json.dumps(chunk["error"]))
            for choice in chunk["choices"]:
                new_ids = choice.get("token_ids") or []
                if new_ids or choice["text"]:
                    arrivals.append((now_s, len(new_ids)))
                token_ids += new_ids
                texts.append(choice["text"])
            final.update({name: chunk[name] for name in ("usage", "fastverify") if chunk.get(name)})
    return _from_arrivals(start_s, arrivals, token_ids, "".join(texts), final)


def _from_arrivals(
    start_s: float, arrivals: list[tuple[float, int]], token_ids: list[int], text: str, final: dict[str, Any]
) -> Completion:
    if not arrivals or "usage" not in final:
        raise ServerError("a streamed answer must hold text and end with its usage, but the stream ended before.")
    ttft_s = arrivals[0][0] - start_s
    if "fastverify" in final:
        return _server_timed(token_ids, text, final["fastverify"], ttft_s)
    num_tokens = final["usage"]["completion_tokens"]
    return Completion(
        token_ids=tuple(token_ids),
        text=text,
        num_tokens=num_tokens,
        ttft_s=ttft_s,
        decode_s=arrivals[-1][0] - arrivals[0][0],
        # A server that sends no ids sends its first token alone, as both SGLang and vLLM do.
        num_decode_tokens=num_tokens - max(arrivals[0][1], 1),
        timing_source="client",
        accept_length=None,
    )


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            yield json.loads(data)
