import os

import pytest

from fastverify.comm.peers.library_env import DISABLE_MULTICAST, no_multicast, variables_defaulted


@pytest.mark.parametrize("before", [None, "0"])
def test_what_the_user_said_about_multicast_comes_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is not None:
        monkeypatch.setenv(DISABLE_MULTICAST, before)
    with no_multicast():
        assert os.environ[DISABLE_MULTICAST] == "1"
    assert os.environ.get(DISABLE_MULTICAST) == before


def test_a_default_gives_way_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SWITCH", "mine")
    monkeypatch.delenv("OTHER_SWITCH", raising=False)
    with variables_defaulted({"SOME_SWITCH": "ours", "OTHER_SWITCH": "ours"}):
        assert (os.environ["SOME_SWITCH"], os.environ["OTHER_SWITCH"]) == ("mine", "ours")
    assert os.environ["SOME_SWITCH"] == "mine"
    assert "OTHER_SWITCH" not in os.environ
