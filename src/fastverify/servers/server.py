"""What every server can do for the tuner: be launched, answer a load, show its metrics, profile itself, and stop.

A launch command is opaque: `srun`, `docker` and `ray` work as long as a URL comes out. What differs between servers
(flags, metric names, the fields that choose an arm) lives behind these protocols and nowhere else.
Tests: tests/contracts/server_contract.py runs the same class over every server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

if TYPE_CHECKING:
    from fastverify.servers.metrics import MetricsPage

Setting = str | int | float | bool
Arm = Literal["plain", "speculative"]


@dataclass(frozen=True)
class LaunchSpec:
    """How to start one server, and the settings that its command line stands for."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of this process."""
    settings: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """One prompt of a load; the id stays the same in every file that mentions it."""

    prompt_id: str
    text: str
    domain: str = ""


class RunningServer(Protocol):
    """A healthy server. Leaving its context stops it; every method raises ServerError when it does not answer."""

    url: str

    def settings(self) -> dict[str, Setting]:
        """Settings after resolution, as the server itself reports them."""
        ...

    def arms(self) -> tuple[Arm, ...]:
        """The arms that this launch can serve: both, or only the one it was launched for."""
        ...

    def request_fields(self, arm: Arm) -> dict[str, object]:
        """Fields that a completion request of this arm needs beyond the OpenAI ones."""
        ...

    def metrics(self) -> MetricsPage:
        """Its metrics page now."""
        ...

    def start_profile(self, output_dir: Path) -> None:
        """Begin recording on every rank; files go below `output_dir`."""
        ...

    def stop_profile(self) -> tuple[Path, ...]:
        """End recording and return one file per rank."""
        ...

    def log_tail(self, num_lines: int = 40) -> str:
        """The last lines that the server wrote."""
        ...

    def is_alive(self) -> bool:
        """Whether its process runs; says nothing about health."""
        ...

    def exit_code(self) -> int | None:
        """None while its process runs; 128 + signal number where a signal ended it."""
        ...

    def stop(self) -> None:
        """End the server and everything it started. Calling twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Server(Protocol):
    """One kind of server."""

    name: str

    def launch_spec(self, settings: Mapping[str, Setting]) -> LaunchSpec:
        """The command line for these settings. Raises ConfigError for a setting that this server does not have."""
        ...

    def launch(self, spec: LaunchSpec, log_path: Path) -> RunningServer:
        """Start it and wait until it is healthy.

        Raises: ServerStartError with the tail of its log; nothing is left running then.
        """
        ...
