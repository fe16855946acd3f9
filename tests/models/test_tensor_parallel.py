"""Two and four ranks give what one rank gives, with the number of collectives that the cost model counts on.

Every check of one world size runs in one set of processes, because starting them is what costs time.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.comm.communicator import Communicator, create_communicator, single_rank_communicator
from fastverify.comm.group import close_group, create_group
from fastverify.model_config import ModelConfig
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.random_weights import write_random_target
from fastverify.models.vocab_parallel import VocabParallelHead
from fastverify.models.weights import load_draft, load_target
from tests.models import eagle3_reference as formulas
from tests.models.conftest import ReferenceModel
from tests.models.passes import cached_logits
from tests.models.simple_attention import SimpleAttention
from tests.ranks import run_ranks

TIGHT = {"rtol": 1e-4, "atol": 2e-5}
DEEP = ModelConfig("LlamaForCausalLM", 16, 61, 4, 2, 4, 24, 40)
Cases = dict[str, Any]


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_agree_with_one_rank(
    world_size: int, reference_models: dict[str, ReferenceModel], tmp_path: Path
) -> None:
    head_folder = tmp_path / "head"
    formulas.write_head(head_folder, 64, 101)
    write_random_target(DEEP, tmp_path / "deep", seed=3)
    target_folder = reference_models["llama-tied-llama3"].folder
    draft = run_draft(load_head(target_folder, head_folder, single_rank_communicator(), replicated=False))
    cases = {
        "targets": {str(model.folder): (model.token_ids, model.logits) for model in reference_models.values()},
        "target": target_folder,
        "head": head_folder,
        "draft": draft,
        "deep": tmp_path / "deep",
    }
    run_ranks(check_rank, world_size, cases)


def check_rank(rank: int, world_size: int, rendezvous: str, cases: Cases) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=60)
    communicator = create_communicator(group, "gloo")
    for folder, (token_ids, logits) in cases["targets"].items():
        check_target(Path(folder), token_ids, logits, communicator)
    for replicated in (False, True):
        check_draft(cases, communicator, replicated)
    check_ties(communicator)
    check_counts(cases["deep"], communicator)
    communicator.close()
    close_group(group)


def check_target(folder: Path, token_ids: torch.Tensor, logits: torch.Tensor, communicator: Communicator) -> None:
    model = load_target(folder, communicator)
    torch.testing.assert_close(cached_logits(model, token_ids, (30, 31, 35)), logits, **TIGHT)
    with torch.inference_mode():
        hidden = model(token_ids, torch.arange(len(token_ids)), SimpleAttention()).hidden_TD
        assert torch.equal(model.greedy(hidden), logits.argmax(-1))
        assert model.local_logits(hidden).shape[1] < logits.shape[1]


def load_head(target: Path, head: Path, communicator: Communicator, replicated: bool) -> Eagle3Head:
    model = load_target(target, communicator, capture_layers=(0, 1, 3))
    return load_draft(head, model, single_rank_communicator() if replicated else communicator)


@torch.inference_mode()
def run_draft(head: Eagle3Head) -> list[torch.Tensor]:
    """Everything a drafter asks of a head, on fixed inputs."""
    generator = torch.Generator().manual_seed(7)
    fused = head.fuse(torch.randn(6, 3, 64, generator=generator))
    token_ids = torch.randint(0, 101, (6,), generator=generator)
    hidden = head(token_ids, fused, torch.arange(6), SimpleAttention())
    return [hidden, head.greedy(hidden), *head.top_k(hidden, 5), head.probs(hidden, 0.8)]


def check_draft(cases: Cases, communicator: Communicator, replicated: bool) -> None:
    head = load_head(cases["target"], cases["head"], communicator, replicated)
    before = communicator.stats.snapshot()
    for got, expected in zip(run_draft(head), cases["draft"], strict=True):
        torch.testing.assert_close(got, expected, **TIGHT)
    collectives = (communicator.stats.snapshot() - before).total().calls
    # Embedding, attention and MLP of the forward; one gather each for greedy, top_k and probs.
    assert collectives == (0 if replicated else 6)


def check_ties(communicator: Communicator) -> None:
    """Equal logits on two ranks, and on padding: the lowest id wins, as in an unsharded arg-max."""
    head = VocabParallelHead(5, 1, communicator)
    full = torch.tensor([-3.0, -1.0, -2.0, -1.0, -1.0])
    for slot in head.slots("weight"):
        slot.destination.copy_(full[slot.start : slot.stop, None])
    assert head.greedy(torch.ones(2, 1)).tolist() == [1, 1]
    log_probs, ids = head.top_k(torch.ones(1, 1), 5)
    assert sorted(ids[0, :3].tolist()) == [1, 3, 4]
    torch.testing.assert_close(log_probs[0], full.log_softmax(-1).sort(descending=True).values)


@torch.inference_mode()
def check_counts(folder: Path, communicator: Communicator) -> None:
    """61 layers: 122 all-reduces of layers, one of the embedding, one gather of the arg-max."""
    model = load_target(folder, communicator)
    before = communicator.stats.snapshot()
    model.greedy(model(torch.arange(4), torch.arange(4), SimpleAttention()).hidden_TD)
    ran = communicator.stats.snapshot() - before
    gathers = ran.total(op="all_gather")
    assert gathers.calls == 1
    assert gathers.total_bytes == 4 * 2 * 4
    assert ran.total().calls - gathers.calls == 122 + 1
    assert ran.total(num_bytes=4 * DEEP.hidden_size * 4).calls == 123
