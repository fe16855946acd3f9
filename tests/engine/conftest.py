"""Random checkpoints, written once per run."""

from pathlib import Path

import pytest

from tests.engine.tiny import write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The `model` and `draft` settings of the tiny models."""
    return write_models(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def empty_folder(tmp_path: Path) -> Path:
    """A folder without a model."""
    return tmp_path
