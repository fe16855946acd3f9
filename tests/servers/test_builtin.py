"""The contract over the built-in server with a tiny random model on two ranks, and its command line."""

from typing import Any

import pytest

from fastverify.errors import ConfigError
from fastverify.servers.builtin import BuiltinServer, as_typed, builtin_argv, find_listening_url
from tests.contracts.server_contract import ServerContract
from tests.servers.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def server() -> BuiltinServer:
    return BuiltinServer(start_timeout_s=60)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_tiny_model(tmp_path_factory.mktemp("model")), "num_draft_steps": 2, "comm_backend": "shm"}


@pytest.mark.server
@pytest.mark.ranks
class TestBuiltinServer(ServerContract):
    bad_setting = ("num_draft_steps", 99)


def test_settings_become_flags() -> None:
    argv = builtin_argv({"num_draft_steps": 4, "fuse_rmsnorm": False, "comm_backend": "shm"})
    assert argv[1:] == (
        *("-m", "fastverify", "serve", "--port", "0"),
        *("--num-draft-steps", "4", "--no-fuse-rmsnorm", "--comm-backend", "shm"),
    )
    assert builtin_argv({"fuse_rmsnorm": True})[-1] == "--fuse-rmsnorm"


def test_a_name_that_is_no_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="got '--host'"):
        builtin_argv({"--host": "0.0.0.0"})


def test_the_listening_line_is_found_among_others() -> None:
    assert (
        find_listening_url("WARNING x: slow\nfastverify: listening on http://127.0.0.1:81\n") == "http://127.0.0.1:81"
    )
    assert find_listening_url("listening on http://127.0.0.1:81") is None
    assert find_listening_url("fastverify: listening on http://127.0.0.1:8") is not None


def test_a_command_is_shown_as_a_user_types_it() -> None:
    argv = builtin_argv({"tp_size": 2, "fuse_rmsnorm": False})
    assert as_typed(argv) == "fastverify serve --tp-size 2 --no-fuse-rmsnorm"
    assert as_typed(["vllm", "serve", "a model", "--port", "0"]) == "vllm serve 'a model' --port 0"
