"""Reads and validates a request body: JSON only, at most so many bytes, into one of the schemas."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from fastverify.engine.http.errors import RequestError, from_validation

Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(request: Request, schema: type[Schema], max_bytes: int, *, optional: bool = False) -> Schema:
    """The validated body. Raises RequestError: 400 for what breaks a rule, 413 for too much, 415 for no JSON."""
    data = await _read_limited(request, max_bytes)
    if optional and not data:
        return schema()
    # A page in a browser can post text to a loopback server without asking, but not JSON.
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestError(415, f"the Content-Type must be application/json, got {content_type or 'none'!r}.")
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error, sorted(schema.model_fields)) from None


async def _read_limited(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise RequestError(413, f"a request body has at most {max_bytes} bytes, got more. Shorten the prompt.")
        chunks.append(chunk)
    return b"".join(chunks)
