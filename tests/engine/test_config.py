from typing import Any

import pytest

from fastverify.engine.config import EngineConfig, num_grown_nodes, parse_num_proposed_drafts
from fastverify.errors import ConfigError


def test_a_chain_proposes_one_draft_per_step() -> None:
    assert EngineConfig(num_draft_steps=5).num_verify_tokens == 6


def test_a_tree_keeps_twice_its_depth_unless_told() -> None:
    assert EngineConfig(draft_shape="tree", top_k=4, num_draft_steps=4).num_verify_tokens == 9
    assert EngineConfig(draft_shape="tree", top_k=1, num_draft_steps=4).num_verify_tokens == 5
    assert EngineConfig(draft_shape="tree", top_k=2, num_proposed_drafts=3).num_verify_tokens == 4


def test_without_a_drafter_nothing_is_proposed() -> None:
    assert EngineConfig(drafter="none", num_draft_steps=7).num_verify_tokens == 1


def test_resolved_settings_make_the_same_settings() -> None:
    config = EngineConfig(draft_shape="tree", top_k=3)
    assert EngineConfig(**config.to_dict()) == config  # type: ignore[arg-type]


def test_grown_nodes() -> None:
    assert [num_grown_nodes(1, 4), num_grown_nodes(3, 2)] == [4, 2 + 4 + 4]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"drafter": "medusa"}, "eagle3, ngram, none"),
        ({"tp_size": 0}, "tp_size must be at least 1, got 0"),
        ({"num_proposed_drafts": 5}, "num_proposed_drafts must be 3"),
        ({"top_k": 2}, "a chain has top_k 1"),
        ({"draft_shape": "tree", "top_k": 2, "num_proposed_drafts": 11}, "keeps 1 to 10 nodes"),
        ({"draft": "none"}, "needs a head"),
        ({"model": "/other"}, "fits the bundled target only"),
        ({"ngram_min": 3, "ngram_max": 2}, "at least ngram_min"),
        ({"num_draft_steps": 17}, "at most 16"),
    ],
)
def test_broken_rules_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EngineConfig(**changes)


def test_the_flag_of_a_number_or_auto() -> None:
    assert [parse_num_proposed_drafts("auto"), parse_num_proposed_drafts("6")] == ["auto", 6]
    with pytest.raises(ConfigError, match="whole number or 'auto', got 'six'"):
        parse_num_proposed_drafts("six")
