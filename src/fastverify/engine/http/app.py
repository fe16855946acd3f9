"""The starlette application: routes, error handlers, and the bridge's life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fastverify.engine.http import admin
from fastverify.engine.http.chat import create_chat_completion
from fastverify.engine.http.completions import create_completion
from fastverify.engine.http.errors import (
    RequestError,
    answer_http_exception,
    answer_request_error,
    answer_unexpected,
)
from fastverify.engine.http.service import Service

# nginx's status for a client that closed its connection; nobody reads it, only an access log shows it.
CLIENT_CLOSED_REQUEST = 499


def build_app(service: Service) -> Starlette:
    """The application over a started engine; its lifespan starts and ends the bridge's threads."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.bridge.start()
        try:
            yield
        finally:
            await service.bridge.close()

    app = Starlette(
        routes=[
            Route("/v1/completions", create_completion, methods=["POST"]),
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/v1/models", admin.models),
            Route("/health", admin.health),
            Route("/metrics", admin.metrics),
            Route("/server_info", admin.server_info),
            Route("/start_profile", admin.start_profile, methods=["POST"]),
            Route("/stop_profile", admin.stop_profile, methods=["POST"]),
        ],
        exception_handlers={
            RequestError: answer_request_error,
            HTTPException: answer_http_exception,
            ClientDisconnect: _answer_nobody,
            Exception: answer_unexpected,
        },
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
