"""Two ranks decode what one decodes, with the collectives that the cost model counts on. One set of processes."""

from typing import Any

import pytest

from fastverify.comm.communicator import Communicator, create_communicator
from fastverify.comm.group import close_group, create_group
from fastverify.engine.load import load_core
from fastverify.engine.stats import CYCLE_PHASES, EngineStats
from fastverify.model_config import Eagle3Config, ModelConfig
from tests.engine.tiny import core_of, prompts, requests, run, settings, write_models
from tests.ranks import run_ranks

PROMPTS = prompts(6, seed=9)
TREE = {"draft_shape": "tree", "num_draft_steps": 3, "top_k": 3, "num_proposed_drafts": 8}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none"},
    "chain": {"num_draft_steps": 3},
    "chain, replicated": {"num_draft_steps": 3, "draft_placement": "replicated"},
    "chain, local arg-max": {"num_draft_steps": 3, "draft_token_exchange": "local_argmax"},
    "chain, one at a time": {"num_draft_steps": 5, "max_batch": 1},
    "chain, separate norm": {"num_draft_steps": 3, "fuse_rmsnorm": False},
    "tree": TREE,
    "tree, replicated, local": {**TREE, "draft_placement": "replicated", "draft_token_exchange": "local_argmax"},
    "ngram": {"drafter": "ngram", "num_draft_steps": 4},
}
# Both backends; gloo is slow, so few cases go over it.
OVER_GLOO = {"plain", "chain"}
NUM_LAYERS = 3
# 61 layers like Kimi-K2.5, as narrow as possible.
DEEP = ModelConfig("LlamaForCausalLM", 16, 61, 4, 2, 4, 24, 48, max_position_embeddings=512)
DEEP_HEAD = Eagle3Config(ModelConfig("LlamaForCausalLM", 16, 1, 4, 2, 4, 24, 48), 48, 16, (2, 30, 58), "for tests")


def decode_on_rank(rank: int, world_size: int, rendezvous: str, models: dict[str, str], deep: dict[str, str]) -> Any:
    group = create_group(rank, world_size, rendezvous, timeout_s=60)
    results = {}
    for name, changes in CASES.items():
        backend = "gloo" if name in OVER_GLOO else "shm"
        communicator = create_communicator(group, backend, fuse_rmsnorm=changes.get("fuse_rmsnorm", True))
        results[name] = decode(communicator, models, **changes)
    results["deep"] = decode(create_communicator(group, "shm"), deep, num_draft_steps=3)
    sampled = {"temperature": 1.0, "seed": 3}
    core = load_core(settings(models, tp_size=2, num_draft_steps=3), create_communicator(group, "shm"))
    results["sampled"] = (run(core, requests(PROMPTS, 8, **sampled)), core.stats())
    close_group(group)
    return results


def decode(communicator: Communicator, models: dict[str, str], **changes: Any) -> tuple[Any, EngineStats]:
    core = load_core(settings(models, tp_size=2, **changes), communicator)
    return run(core, requests(PROMPTS, 8)), core.stats()


@pytest.fixture(scope="module")
def ranks(models: dict[str, str], deep_models: dict[str, str]) -> list[dict[str, tuple[Any, EngineStats]]]:
    return run_ranks(decode_on_rank, 2, models, deep_models, timeout_s=90)


@pytest.fixture(scope="module")
def deep_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_models(tmp_path_factory.mktemp("deep"), DEEP, DEEP_HEAD)


@pytest.mark.ranks
def test_two_ranks_decode_what_one_decodes(
    ranks: list[dict[str, tuple[Any, EngineStats]]], models: dict[str, str]
) -> None:
    plain = run(core_of(settings(models, drafter="none")), requests(PROMPTS, 8))
    for name in CASES:
        for rank in ranks:
            assert rank[name][0] == plain, name


@pytest.mark.ranks
def test_both_ranks_sample_the_same_tokens(ranks: list[dict[str, tuple[Any, EngineStats]]]) -> None:
    assert ranks[0]["sampled"][0] == ranks[1]["sampled"][0]


def count(stats: EngineStats, phase: str, op: str) -> int:
    return sum(c["count"] for c in stats.collectives if c["phase"] == phase and c["op"].startswith(op))


@pytest.mark.ranks
@pytest.mark.parametrize(("name", "num_layers"), [("chain", NUM_LAYERS), ("tree", NUM_LAYERS), ("deep", 61)])
def test_a_verify_pass_is_two_all_reduces_a_layer_one_more_and_a_gather(
    ranks: list[dict[str, tuple[Any, EngineStats]]], name: str, num_layers: int
) -> None:
    stats = ranks[0][name][1]
    num_passes = stats.passes["verify"]
    assert count(stats, "verify", "all_reduce") == num_passes * (2 * num_layers + 1)
    assert count(stats, "verify", "all_gather") == num_passes


@pytest.mark.ranks
def test_separate_norms_change_no_count(ranks: list[dict[str, tuple[Any, EngineStats]]]) -> None:
    fused, separate = ranks[0]["chain"][1], ranks[0]["chain, separate norm"][1]
    assert count(separate, "verify", "all_reduce") == count(fused, "verify", "all_reduce")
    assert count(separate, "verify", "all_reduce_residual_rmsnorm") == 0


@pytest.mark.ranks
def test_a_replicated_draft_has_no_collectives(ranks: list[dict[str, tuple[Any, EngineStats]]]) -> None:
    assert {c["phase"] for c in ranks[0]["chain"][1].collectives} >= {"draft", "extend"}
    for name in ("chain, replicated", "tree, replicated, local"):
        stats = ranks[0][name][1]
        # "none" is loading: the embedding table is gathered once.
        assert {c["phase"] for c in stats.collectives} == {"none", "prefill", "verify"}


@pytest.mark.ranks
def test_a_local_arg_max_gathers_fewer_bytes(ranks: list[dict[str, tuple[Any, EngineStats]]]) -> None:
    gathered = {
        name: sum(c["bytes"] for c in ranks[0][name][1].collectives if (c["phase"], c["op"]) == ("draft", "all_gather"))
        for name in ("chain", "chain, local arg-max")
    }
    assert 0 < gathered["chain, local arg-max"] < gathered["chain"] / 4


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["plain", "chain", "tree", "ngram"])
def test_phases_sum_to_the_cycle(ranks: list[dict[str, tuple[Any, EngineStats]]], name: str) -> None:
    cycles = ranks[0][name][1].cycles
    assert cycles
    for cycle in cycles:
        parts = [cycle[f"{phase}_s"] for phase in CYCLE_PHASES[cycle["kind"]]]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(cycle["total_s"])
    pass_phase = "plain" if name == "plain" else "verify"
    assert sum(cycle[f"{pass_phase}_all_reduce_s"] for cycle in cycles) > 0
