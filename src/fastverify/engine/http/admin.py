"""Endpoints about the server itself: health, metrics, settings, models, profiles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fastverify.engine.http.body import read_body
from fastverify.engine.http.errors import RequestError
from fastverify.engine.http.metrics_page import metrics_page
from fastverify.engine.http.schemas import ProfileRequest
from fastverify.engine.http.service import Service, service_of
from fastverify.errors import FastverifyError, WorkerDiedError

Result = TypeVar("Result")


async def health(request: Request) -> Response:
    """200 while requests are taken; 503 after a rank died and while draining."""
    service = service_of(request)
    if service.bridge.failure is not None:
        return JSONResponse({"status": "failed", "reason": str(service.bridge.failure).split("\n", 1)[0]}, 503)
    if service.is_draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


async def metrics(request: Request) -> Response:
    """The engine's statistics at this moment, in Prometheus text."""
    service = service_of(request)
    stats = await _call(service, service.bridge.stats)
    return Response(metrics_page(stats, service.bridge.finish_reasons), media_type=CONTENT_TYPE_LATEST)


async def server_info(request: Request) -> Response:
    """Resolved settings, versions and model sizes."""
    return JSONResponse(dict(service_of(request).info))


async def models(request: Request) -> Response:
    """The one served model."""
    service = service_of(request)
    model = {"id": service.limits.name, "object": "model", "created": service.created_s, "owned_by": "fastverify"}
    return JSONResponse({"object": "list", "data": [model | {"max_model_len": service.limits.max_seq_len}]})


async def start_profile(request: Request) -> Response:
    """Begin recording on every rank."""
    service = service_of(request)
    fields = await read_body(request, ProfileRequest, service.max_body_bytes, optional=True)
    folder = Path(fields.output_dir) if fields.output_dir else Path(tempfile.mkdtemp(prefix="fastverify-profile-"))
    await _call(service, lambda: service.bridge.start_profile(folder))
    return JSONResponse({"output_dir": str(folder)})


async def stop_profile(request: Request) -> Response:
    """End recording; answers once every rank has written its file."""
    service = service_of(request)
    files = await _call(service, service.bridge.stop_profile)
    return JSONResponse({"files": [str(file) for file in files]})


async def _call(service: Service, call: Callable[[], Result]) -> Result:
    """One command of the engine. Raises RequestError: 503 after a failure, 400 for what the engine refuses."""
    try:
        return await service.bridge.command(call)
    except (WorkerDiedError, TimeoutError) as error:
        raise RequestError(503, str(error).split("\n", 1)[0], code="engine_failed") from None
    except (FastverifyError, OSError) as error:
        raise RequestError(400, str(error)) from None
