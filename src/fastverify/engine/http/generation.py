"""One request from validated fields to pieces of text: tokenise, check the limits, submit, decode, cut at stop texts.

Completions and chat differ only in the prompt and in the shape of their answers. A stop text ends the request in the
engine as well, so it costs no tokens beyond the cycle that produced it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastverify.engine.http.engine_bridge import EngineBridge, QueueFullError, TokenStream
from fastverify.engine.http.errors import RequestError, shown
from fastverify.engine.http.schemas import GenerationRequest
from fastverify.engine.http.stop_scanner import StopScanner
from fastverify.engine.http.text import TextCodec
from fastverify.engine.request import Request, RequestStats, SamplingParams, TokenEvent
from fastverify.errors import ConfigError, WorkerDiedError

# Arbitrary: a text below this many characters is encoded in a few milliseconds.
LONG_TEXT = 10_000


@dataclass(frozen=True)
class ModelLimits:
    """What the served model takes."""

    name: str
    max_seq_len: int
    """Prompt and output tokens of one request together."""


@dataclass
class Piece:
    """A part of an answer; the last one carries the reason."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None


@dataclass
class Generation:
    """A submitted request. `pieces` may be iterated once; afterwards `stats` and `num_output_tokens` are final."""

    request: Request
    stream: TokenStream
    codec: TextCodec
    stops: tuple[str, ...]
    stats: RequestStats | None = None
    num_output_tokens: int = 0
    _scanner: StopScanner = field(init=False)

    def __post_init__(self) -> None:
        self._scanner = StopScanner(self.stops)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Text as it comes. Raises RequestError 500 when the engine reports an error for this request."""
        decoder = self.codec.decoder()
        while True:
            event = await self.stream.next_event()
            if event.finish_reason == "error":
                reason = (event.error or "the engine failed on this request.").split("\n", 1)[0]
                raise RequestError(500, reason, code="engine_error")
            piece = self._piece(event, decoder.push)
            if self._scanner.found:
                self.stream.end_at_stop_text()
                self.stats = (await self._last_event(event)).stats
                yield Piece(piece.text, piece.token_ids, "stop")
                return
            if event.finished:
                self.stats = event.stats
                rest = self._scanner.feed(decoder.finish()) + self._scanner.finish()
                yield Piece(piece.text + rest, piece.token_ids, event.finish_reason)
                return
            yield piece

    def usage(self) -> dict[str, int]:
        """The OpenAI usage object."""
        num_prompt = len(self.request.prompt_token_ids)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": num_prompt + self.num_output_tokens,
        }

    def _piece(self, event: TokenEvent, push: Any) -> Piece:
        """The event's tokens up to the one that completes a stop text."""
        if not self.stops:
            self.num_output_tokens += len(event.token_ids)
            return Piece(push(event.token_ids), event.token_ids)
        texts, kept = [], []
        for token_id in event.token_ids:
            kept.append(token_id)
            texts.append(self._scanner.feed(push((token_id,))))
            if self._scanner.found:
                break
        self.num_output_tokens += len(kept)
        return Piece("".join(texts), tuple(kept))

    async def _last_event(self, event: TokenEvent) -> TokenEvent:
        while not event.finished:
            event = await self.stream.next_event()
        return event


async def start_generation(
    bridge: EngineBridge,
    codec: TextCodec,
    limits: ModelLimits,
    fields: GenerationRequest,
    prompt: str | list[int],
    *,
    max_tokens: int | None,
    stops: tuple[str, ...],
    id_prefix: str,
    add_special_tokens: bool = True,
) -> Generation:
    """Submit a request. `max_tokens` None: up to the end of the context.

    Raises: RequestError 400 for what the model cannot take, 404 for another model, 429 when full, 503 after a failure.
    """
    if fields.model is not None and fields.model != limits.name:
        raise RequestError(
            404,
            f"this server has the model {limits.name!r}, got {shown(fields.model)}.",
            param="model",
            code="model_not_found",
        )
    token_ids = await _encode(codec, prompt, add_special_tokens) if isinstance(prompt, str) else prompt
    _check_token_ids("prompt", token_ids, codec.vocab_size)
    _check_token_ids("stop_token_ids", fields.stop_token_ids, codec.vocab_size)
    request = Request(
        request_id=f"{id_prefix}-{uuid.uuid4().hex}",
        prompt_token_ids=tuple(token_ids),
        sampling=SamplingParams(
            max_tokens=_resolve_max_tokens(len(token_ids), max_tokens, limits.max_seq_len),
            temperature=fields.temperature,
            seed=fields.seed,
            stop_token_ids=tuple(fields.stop_token_ids),
            ignore_eos=fields.ignore_eos,
        ),
        speculative=fields.speculative,
        # Stop texts are looked for while the request runs.
        stream=fields.stream or bool(stops),
    )
    return Generation(request, await _submit(bridge, request), codec, stops)


async def _encode(codec: TextCodec, text: str, add_special_tokens: bool) -> list[int]:
    """A long text is encoded in a thread, so that other requests go on meanwhile."""
    if len(text) < LONG_TEXT:
        return codec.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(codec.encode, text, add_special_tokens=add_special_tokens)


async def _submit(bridge: EngineBridge, request: Request) -> TokenStream:
    try:
        return await bridge.submit(request)
    except QueueFullError as error:
        raise RequestError(429, str(error), code="queue_full") from None
    except ConfigError as error:
        raise RequestError(400, str(error)) from None
    except WorkerDiedError as error:
        raise RequestError(503, str(error).split("\n", 1)[0], code="engine_failed") from None


def _check_token_ids(name: str, token_ids: list[int], vocab_size: int) -> None:
    if name == "prompt" and not token_ids:
        raise RequestError(400, "a prompt has at least one token, got none.", param="prompt")
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(400, f"{name}: token ids are in 0..{vocab_size - 1}, got {shown(token_id)}.", param=name)


def _resolve_max_tokens(num_prompt: int, max_tokens: int | None, max_seq_len: int) -> int:
    room = max_seq_len - num_prompt
    if room < 1 or (max_tokens is not None and max_tokens > room):
        asked = "1 or more" if max_tokens is None else str(max_tokens)
        raise RequestError(
            400,
            f"prompt and output together have at most {max_seq_len} tokens, got a prompt of {num_prompt} and "
            f"max_tokens of {asked}. Shorten the prompt, lower max_tokens, or start the server with a larger "
            "--max-seq-len.",
            param="prompt" if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    return room if max_tokens is None else max_tokens
