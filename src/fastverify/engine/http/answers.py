"""Sends a generation as one JSON object or as server-sent events, and drops it when the client goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fastverify.engine.http.errors import RequestError
from fastverify.engine.http.generation import Generation, Piece
from fastverify.engine.http.schemas import GenerationRequest

Result = TypeVar("Result")
DONE = "data: [DONE]\n\n"


class AnswerShape(Protocol):
    """How completions and chat differ: the objects around the text."""

    whole_object: str
    chunk_object: str

    def whole_choice(self, piece: Piece) -> dict[str, Any]: ...

    def first_chunk(self) -> dict[str, Any] | None:
        """A choice that is sent before any text, or None."""
        ...

    def chunk_choice(self, piece: Piece) -> dict[str, Any]: ...


async def answer(
    request: Request, fields: GenerationRequest, generation: Generation, model: str, shape: AnswerShape
) -> Response:
    """The response for a submitted generation. Raises ClientDisconnect when nobody waits for it any more."""
    writer = _Writer(fields, generation, model, shape)
    try:
        if not fields.stream:
            return JSONResponse(await _unless_disconnected(request, writer.whole()))
        # An engine that fails at once is answered with a status instead of an event in a stream that began with 200.
        pieces = generation.pieces()
        first: Piece = await _unless_disconnected(request, anext(pieces))
    except BaseException:
        generation.stream.cancel()
        raise
    return _EventStream(writer.events(first, pieces), generation)


class _Writer:
    def __init__(self, fields: GenerationRequest, generation: Generation, model: str, shape: AnswerShape) -> None:
        self._fields = fields
        self._generation = generation
        self._shape = shape
        self._head = {"id": generation.request.request_id, "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        pieces = [piece async for piece in self._generation.pieces()]
        joined = Piece(
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            finish_reason=pieces[-1].finish_reason,
        )
        choice = self._choice(self._shape.whole_choice(joined), joined)
        return self._document(self._shape.whole_object, [choice], usage=True) | self._stats()

    async def events(self, first: Piece, rest: AsyncIterator[Piece]) -> AsyncIterator[str]:
        """Server-sent events; an error after the first byte is an event of its own."""
        opening = self._shape.first_chunk()
        if opening is not None:
            yield self._event([{"index": 0, "finish_reason": None, **opening}])
        yield self._piece_event(first)
        try:
            async for piece in rest:
                yield self._piece_event(piece)
        except RequestError as error:
            yield f"data: {json.dumps(error.body())}\n\n"
            yield DONE
            return
        if self._fields.stream_options is not None and self._fields.stream_options.include_usage:
            yield _sse(self._document(self._shape.chunk_object, [], usage=True) | self._stats())
        yield DONE

    def _piece_event(self, piece: Piece) -> str:
        choices = [self._choice(self._shape.chunk_choice(piece), piece)]
        return self._event(choices, self._stats() if piece.finish_reason else {})

    def _event(self, choices: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> str:
        return _sse(self._document(self._shape.chunk_object, choices) | (extra or {}))

    def _choice(self, content: dict[str, Any], piece: Piece) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": piece.finish_reason}
        if self._fields.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        return choice

    def _document(self, kind: str, choices: list[dict[str, Any]], *, usage: bool = False) -> dict[str, Any]:
        document = {**self._head, "object": kind, "choices": choices}
        return document | {"usage": self._generation.usage()} if usage else document

    def _stats(self) -> dict[str, Any]:
        stats = self._generation.stats
        return {"fastverify": asdict(stats) | {"accept_length": stats.accept_length}} if stats is not None else {}


class _EventStream(StreamingResponse):
    """Cancels the generation when the response ends for any reason before the generation does."""

    def __init__(self, events: AsyncIterator[str], generation: Generation) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.stream.cancel()


async def _unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Result of the work. Raises ClientDisconnect, and cancels the work, when the client goes away first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            result: Result = working.result()
            return result
        raise ClientDisconnect
    finally:
        for task in (working, watching):
            task.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sse(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n"
