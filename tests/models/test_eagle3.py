"""The EAGLE-3 head against its formulas, for every switch that a config.json can set."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import ConfigError
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.weights import load_draft, load_target
from tests.models import eagle3_reference as formulas
from tests.models.conftest import ReferenceModel
from tests.models.simple_attention import SimpleAttention

SWITCHES: tuple[dict[str, Any], ...] = (
    {},
    {"norm_before_residual": True},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True},
)
TIGHT = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def target(reference_models: dict[str, ReferenceModel]) -> LlamaForCausalLM:
    folder = reference_models["llama-tied-llama3"].folder
    return load_target(folder, single_rank_communicator(), capture_layers=(0, 1, 3))


@pytest.fixture
def head(target: LlamaForCausalLM, tmp_path: Path) -> Eagle3Head:
    formulas.write_head(tmp_path / "head", 64, 101)
    return load_draft(tmp_path / "head", target, single_rank_communicator())


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "+".join(switches) or "plain")
@torch.inference_mode()
def test_states_and_logits_follow_the_formulas(
    switches: dict[str, Any], target: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = formulas.write_head(tmp_path / "head", 64, 101, **switches)
    head = load_draft(tmp_path / "head", target, single_rank_communicator())
    assert head.embed_tokens is target.embed_tokens
    aux_TAD, token_ids, positions = torch.randn(6, 3, 64), torch.randint(0, 101, (6,)), torch.arange(4, 10)
    fused_TD = formulas.fused(tensors, aux_TAD, **switches)
    torch.testing.assert_close(head.fuse(aux_TAD), fused_TD, **TIGHT)
    embedded = target.embed_tokens.weight[token_ids]
    expected = formulas.states(tensors, embedded, fused_TD, positions.tolist(), **switches)
    kept = fused_TD.clone()
    attention = SimpleAttention()
    pieces = [head(token_ids[part], fused_TD[part], positions[part], attention) for part in (slice(4), slice(4, 6))]
    torch.testing.assert_close(torch.cat(pieces), expected, **TIGHT)
    assert torch.equal(fused_TD, kept), "the caller's hidden states are not written to"
    torch.testing.assert_close(head.logits(expected), formulas.draft_logits(tensors, expected, **switches), **TIGHT)


@torch.inference_mode()
def test_answers_are_target_ids(head: Eagle3Head) -> None:
    hidden_TD = torch.randn(5, 64)
    logits = head.logits(hidden_TD)
    target_ids = torch.arange(formulas.DRAFT_VOCAB) + head.d2t
    assert torch.equal(head.greedy(hidden_TD), target_ids[logits.argmax(-1)])
    log_probs, ids = head.top_k(hidden_TD, 4)
    best = logits.log_softmax(-1).topk(4, -1)
    torch.testing.assert_close(log_probs, best.values, **TIGHT)
    assert torch.equal(ids, target_ids[best.indices])


@torch.inference_mode()
def test_probs_cover_the_target_vocabulary(head: Eagle3Head) -> None:
    hidden_TD = torch.randn(5, 64)
    probs = head.probs(hidden_TD, temperature=0.7)
    target_ids = torch.arange(formulas.DRAFT_VOCAB) + head.d2t
    torch.testing.assert_close(probs[:, target_ids], (head.logits(hidden_TD) / 0.7).softmax(-1))
    torch.testing.assert_close(probs.sum(-1), torch.ones(5))
    assert probs.shape == (5, 101)
    with pytest.raises(ConfigError, match="above 0"):
        head.probs(hidden_TD, temperature=0.0)


def test_gradients_reach_every_parameter_but_the_shared_embedding(target: LlamaForCausalLM, head: Eagle3Head) -> None:
    own = [(name, value) for name, value in head.named_parameters() if not name.startswith("embed_tokens")]
    for _, value in own:
        value.requires_grad_(True)
    attention = SimpleAttention()
    hidden = head.fuse(torch.randn(6, 3, 64))
    for step in range(2):
        hidden = head(torch.randint(0, 101, (6,)), hidden, torch.arange(6) + step, attention)
    head.logits(hidden).logsumexp(-1).sum().backward()
    assert [name for name, value in own if value.grad is None or not value.grad.any()] == []
    assert target.embed_tokens.weight.grad is None
