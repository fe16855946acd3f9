"""From settings to a listening server: bind, start the ranks, read the tokenizer, serve, end the ranks.

The address is taken first, so that a taken port costs no model load.
"""

from __future__ import annotations

import platform
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any

from fastverify.engine.config import EngineConfig
from fastverify.engine.engine import Engine
from fastverify.engine.http.app import build_app
from fastverify.engine.http.chat_template import read_chat_template
from fastverify.engine.http.engine_bridge import EngineBridge
from fastverify.engine.http.generation import ModelLimits
from fastverify.engine.http.http_config import HttpConfig
from fastverify.engine.http.listen import bind, listen
from fastverify.engine.http.service import Service
from fastverify.engine.model_folders import target_folder
from fastverify.engine.tokenizer import Tokenizer

SCHEMA_VERSION = 1
VERSIONED_PACKAGES = ("fastverify", "torch", "tokenizers", "safetensors", "numpy", "starlette", "uvicorn")


def serve(config: EngineConfig, http: HttpConfig, on_listening: Callable[[str], None]) -> None:
    """Serve until a signal; `on_listening` gets the URL once requests are taken.

    Raises: ServerError for an address that cannot be had, ConfigError for a model that is not there or does not fit,
    WorkerDiedError when a rank dies.
    """
    folder = target_folder(config.model)
    tokenizer, template = Tokenizer.load(folder), read_chat_template(folder)
    with bind(http) as sock:
        signal.signal(signal.SIGTERM, _end_start)
        with Engine.start(config) as engine:
            service = Service(
                bridge=EngineBridge(engine, http.max_open_requests),
                codec=tokenizer,
                template=template,
                limits=ModelLimits(model_name(config), config.max_seq_len),
                max_body_bytes=http.max_body_bytes,
                info=server_info(config, http, engine.description),
                created_s=int(time.time()),
            )
            listen(build_app(service), http, sock, on_listening)


def model_name(config: EngineConfig) -> str:
    """What clients call the model: the name of its folder, or "bundled"."""
    return config.model.rstrip("/").rsplit("/", 1)[-1]


def server_info(config: EngineConfig, http: HttpConfig, description: dict[str, Any]) -> dict[str, Any]:
    """Answer of /server_info."""
    return {
        "schema_version": SCHEMA_VERSION,
        "settings": config.to_dict(),
        "http": asdict(http),
        **description,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in VERSIONED_PACKAGES}},
        "machine": {"platform": platform.platform(), "argv": sys.argv},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _end_start(number: int, frame: FrameType | None) -> None:
    """SIGTERM before the server listens: unwind, so that the ranks are ended in order."""
    raise SystemExit(128 + number)
