"""A small corpus, and a target and a head trained on it, made once per run."""

from pathlib import Path

import pytest
import torch

from fastverify.models.export import save_draft, save_target
from fastverify.training.draft import train_draft
from fastverify.training.target import train_target
from tests.training.tiny import tiny_draft_options, tiny_target_options, write_corpus


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def target_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: training log, state, and `model`."""
    folder = tmp_path_factory.mktemp("target")
    save_target(train_target(tiny_target_options(corpus, folder, 80)), folder / "model", torch.float32)
    return folder


@pytest.fixture(scope="session")
def draft_run(corpus: Path, target_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: training log, state, and `model`."""
    folder = tmp_path_factory.mktemp("draft")
    options = tiny_draft_options(corpus, target_run / "model", folder, 60)
    save_draft(train_draft(options), folder / "model", torch.float32)
    return folder
