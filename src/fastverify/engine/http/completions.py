"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fastverify.engine.http.answers import answer
from fastverify.engine.http.body import read_body
from fastverify.engine.http.generation import Piece, start_generation
from fastverify.engine.http.schemas import CompletionRequest
from fastverify.engine.http.service import service_of


class CompletionShape:
    """A choice is its text."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def whole_choice(self, piece: Piece) -> dict[str, Any]:
        """Whole answer."""
        return {"text": piece.text}

    def first_chunk(self) -> None:
        """Nothing comes before the text."""
        return

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        """One piece."""
        return {"text": piece.text}


async def create_completion(request: Request) -> Response:
    """Continue a text or token ids."""
    service = service_of(request)
    fields = await read_body(request, CompletionRequest, service.max_body_bytes)
    generation = await start_generation(
        service.bridge,
        service.codec,
        service.limits,
        fields,
        fields.prompt,
        max_tokens=fields.max_tokens,
        stops=fields.stops,
        id_prefix="cmpl",
    )
    return await answer(request, fields, generation, service.limits.name, CompletionShape())
