"""Settings of the HTTP server beside those of the engine; the flags of `fastverify serve` map to them 1:1."""

from __future__ import annotations

from dataclasses import dataclass

from fastverify.errors import ConfigError

MAX_PORT = 65535


@dataclass(frozen=True)
class HttpConfig:
    """Where the server listens and how much it takes. Raises ConfigError for values that break a rule."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 picks a free one."""
    max_open_requests: int = 256
    """Running and queued together; one more is answered with 429."""
    max_body_bytes: int = 4 * 1024 * 1024
    drain_timeout_s: float = 30.0
    """How long running requests may finish after SIGTERM."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port must be in 0..{MAX_PORT}, got {self.port}. Use 0 for a free one.")
        for name in ("max_open_requests", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.drain_timeout_s >= 0:
            raise ConfigError(f"drain_timeout_s must be at least 0, got {self.drain_timeout_s}.")
