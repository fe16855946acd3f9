"""One emulator per session: a source is compiled once per set of macros and mistakes."""

import pytest

pytest.importorskip("torch")

from tests.comm.cuda.emulator.emulator import Emulator


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    obstacle = Emulator.find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    return Emulator(tmp_path_factory.mktemp("emulator"))
