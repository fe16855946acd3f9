"""The contract over the fake server: what the tuner's tests rely on is what real servers do."""

from pathlib import Path
from typing import Any

import pytest

from tests.contracts.server_contract import ServerContract
from tests.servers.fake_server import FakeBehaviour, FakeServer


def behaviour_of(settings: Any) -> FakeBehaviour:
    return FakeBehaviour(crash_at_start=3 if "num_layers" in settings else 0)


@pytest.fixture(scope="module")
def server() -> FakeServer:
    return FakeServer(behaviour_of)


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"num_draft_steps": 3, "comm_backend": "gloo", "fuse_rmsnorm": True}


@pytest.mark.server
class TestFakeServer(ServerContract):
    bad_setting = ("num_layers", 0)


def test_every_field_is_a_flag(tmp_path: Path) -> None:
    from tests.servers.fake_server import parse_flags

    behaviour = FakeBehaviour(hang_at_start=True, per_position="0.5", crash_after=3, settings='{"a": 1}', noise=0.1)
    assert parse_flags(behaviour.flags()) == behaviour
