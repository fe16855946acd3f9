"""What every endpoint shares: the bridge to the engine, the tokenizer, the template, the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from fastverify.engine.http.chat_template import ChatTemplate
from fastverify.engine.http.engine_bridge import EngineBridge
from fastverify.engine.http.generation import ModelLimits
from fastverify.engine.http.text import TextCodec


@dataclass
class Service:
    """Put into `app.state` by build_app."""

    bridge: EngineBridge
    codec: TextCodec
    template: ChatTemplate
    limits: ModelLimits
    max_body_bytes: int
    info: Mapping[str, Any]
    """Answer of /server_info."""
    created_s: int
    is_draining: bool = False


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service = request.app.state.service
    assert isinstance(service, Service), f"build_app sets app.state.service, got {type(service)}"
    return service
