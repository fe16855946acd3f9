"""What a rank reports when it ends: whose fault it was decides what the user is shown."""

import signal
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fastverify.engine.commands import Failed
from fastverify.errors import CommTimeoutError, EnvironmentMissingError


@pytest.fixture
def rank_process() -> ModuleType:
    """The module, which ignores signals when it is imported: here they are kept."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    from fastverify.engine import rank_process

    for number, handler in handlers.items():
        signal.signal(number, handler)
    return rank_process


@pytest.mark.parametrize(
    ("error", "error_type", "is_consequence"),
    [
        (EnvironmentMissingError("the shm backend cannot run. Use auto or gloo."), "EnvironmentMissingError", False),
        (CommTimeoutError("rank 0 needs rank 1"), None, True),
        (RuntimeError("gloo: connection closed by peer"), None, True),
        (ZeroDivisionError("a bug"), None, False),
    ],
)
def test_a_failure_says_whose_it_is(
    rank_process: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    error_type: str | None,
    is_consequence: bool,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("fastverify.engine.rank_loop.run_rank", fail)
    reports: list[Failed] = []
    assert rank_process._run_reported(None, SimpleNamespace(send=reports.append)) == 1
    assert (reports[0].error_type, reports[0].is_consequence) == (error_type, is_consequence)
