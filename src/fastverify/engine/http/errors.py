"""Errors as OpenAI clients expect them: one JSON object with message, type, param and code.

A message says the rule, what came and what to do, like every error of fastverify; `param` names the field.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

# Source: https://platform.openai.com/docs/guides/error-codes, the `type` of each status.
_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
# Arbitrary: enough to recognise a value in an error without echoing a whole prompt.
_SHOWN_CHARACTERS = 80


class RequestError(Exception):
    """An answer with an error status; raised anywhere below an endpoint."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return JSONResponse(self.body(), status_code=self.status)


def from_validation(error: ValidationError, known_fields: list[str]) -> RequestError:
    """A 400 that names the first field which breaks a rule."""
    first = error.errors(include_url=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "json_invalid":
        return RequestError(400, f"a request body is one JSON object, but it cannot be read: {first['msg']}.")
    if first["type"] == "extra_forbidden":
        message = f"unknown field {param!r}. Known fields: {', '.join(known_fields)}."
    elif first["type"] == "missing":
        message = f"field {param!r} is required."
    elif first["type"] == "value_error":
        message = str(first["ctx"]["error"])
    else:
        message = f"{param or 'the request body'}: {first['msg']}, got {shown(first['input'])}."
    return RequestError(400, message, param=param, code=first["type"])


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


async def answer_request_error(request: Request, error: Exception) -> Response:
    """Handler of RequestError."""
    assert isinstance(error, RequestError)
    return error.response()


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Handler of starlette's own 404 and 405."""
    assert isinstance(error, HTTPException)
    return RequestError(error.status_code, f"{request.method} {request.url.path}: {error.detail}.").response()


async def answer_unexpected(request: Request, error: Exception) -> Response:
    """Handler of everything else: a bug of ours. The server logs the traceback after this answer."""
    return RequestError(500, "the server failed on this request; its log has the traceback.").response()
