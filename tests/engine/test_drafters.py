"""The drafter contract over every drafter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.engine.drafters.drafter import Drafter
from fastverify.engine.drafters.eagle3 import Eagle3Drafter
from fastverify.engine.drafters.ngram import NgramDrafter
from fastverify.engine.phase_clock import PhaseClock
from fastverify.models.weights import load_draft, load_target
from tests.contracts.drafter_contract import DrafterContract
from tests.engine.tiny import HEAD, settings

TREE = {"draft_shape": "tree", "num_draft_steps": 3, "top_k": 3, "num_proposed_drafts": 7}
CASES: dict[str, dict[str, Any]] = {
    "eagle3 chain": {"num_draft_steps": 4},
    "eagle3 tree": TREE,
    "ngram chain": {"drafter": "ngram", "num_draft_steps": 4},
    "ngram tree": {"drafter": "ngram", **TREE},
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def changes(request: pytest.FixtureRequest) -> dict[str, Any]:
    changes: dict[str, Any] = request.param
    return changes


class TestDrafters(DrafterContract):
    @pytest.fixture
    def create_drafter(self, models: dict[str, str], changes: dict[str, Any]) -> Callable[[], Drafter]:
        config = settings(models, **changes)
        communicator = single_rank_communicator()
        clock = PhaseClock([communicator])
        if config.drafter == "ngram":
            return lambda: NgramDrafter(config, clock)
        target = load_target(Path(models["model"]), communicator, capture_layers=HEAD.capture_layers)
        head = load_draft(Path(models["draft"]), target, communicator)
        return lambda: Eagle3Drafter(head, config, clock, torch.float32)

    @pytest.fixture
    def most_drafts(self, models: dict[str, str], changes: dict[str, Any]) -> int:
        return settings(models, **changes).num_verify_tokens - 1
