"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fastverify.engine.http.answers import answer
from fastverify.engine.http.body import read_body
from fastverify.engine.http.chat_template import ChatTemplate
from fastverify.engine.http.errors import RequestError
from fastverify.engine.http.generation import Piece, start_generation
from fastverify.engine.http.schemas import ChatMessage, ChatRequest
from fastverify.engine.http.service import service_of
from fastverify.errors import ConfigError


class ChatShape:
    """A choice is a message, or a delta of one."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole_choice(self, piece: Piece) -> dict[str, Any]:
        """Whole answer."""
        return {"message": {"role": "assistant", "content": piece.text}}

    def first_chunk(self) -> dict[str, Any]:
        """The role comes before the text."""
        return {"delta": {"role": "assistant", "content": ""}}

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        """One piece."""
        return {"delta": {"content": piece.text}}


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    fields = await read_body(request, ChatRequest, service.max_body_bytes)
    generation = await start_generation(
        service.bridge,
        service.codec,
        service.limits,
        fields,
        _render(service.template, fields.messages),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        stops=fields.stops + service.template.stops,
        id_prefix="chatcmpl",
        add_special_tokens=service.template.is_plain,
    )
    return await answer(request, fields, generation, service.limits.name, ChatShape())


def _render(template: ChatTemplate, messages: list[ChatMessage]) -> str:
    roles = {"developer": "system"}
    try:
        return template.render([{"role": roles.get(one.role, one.role), "content": one.text} for one in messages])
    except ConfigError as error:
        raise RequestError(400, str(error), param="messages") from None
