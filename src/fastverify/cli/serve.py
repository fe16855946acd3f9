"""`fastverify serve`: the built-in engine behind an OpenAI-compatible HTTP server."""

from typing import Annotated

import typer

from fastverify.cli.console import print_text
from fastverify.cli.engine_flags import with_engine_flags
from fastverify.engine.config import EngineConfig
from fastverify.engine.http.http_config import HttpConfig
from fastverify.errors import EnvironmentMissingError

DEFAULTS = HttpConfig()


def _http(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, rich_help_panel="HTTP")
    return option


@with_engine_flags
def serve(
    config: EngineConfig,
    host: Annotated[str, _http("Address to listen on; anyone who reaches it can use the model.")] = DEFAULTS.host,
    port: Annotated[int, _http("Port to listen on; 0 picks a free one.")] = DEFAULTS.port,
    max_open_requests: Annotated[
        int, _http("Running and queued requests together; one more is answered with 429.")
    ] = DEFAULTS.max_open_requests,
    max_body_bytes: Annotated[int, _http("Largest request body.")] = DEFAULTS.max_body_bytes,
    drain_timeout_s: Annotated[
        float, _http("How long running requests may finish after SIGTERM.")
    ] = DEFAULTS.drain_timeout_s,
) -> None:
    """Serve a model on 127.0.0.1: completions, chat, metrics, profiles. One line on stdout says when it is up."""
    http = HttpConfig(host, port, max_open_requests, max_body_bytes, drain_timeout_s)
    try:
        from fastverify.engine.http.serve import serve as run_server
    except ImportError as error:
        raise EnvironmentMissingError(
            f"`fastverify serve` needs the package {error.name}. Install fastverify[torch], which brings it."
        ) from error
    run_server(config, http, lambda url: print_text(f"fastverify: listening on {url}"))
