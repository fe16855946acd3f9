"""Logits of one rank against transformers, and what training asks of the same model."""

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.errors import ConfigError
from fastverify.model_config import read_model_config
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import initialize
from fastverify.models.weights import load_target
from tests.models.conftest import ReferenceModel
from tests.models.passes import cached_logits
from tests.models.simple_attention import SimpleAttention

NAMES = ("llama-tied-llama3", "llama-biased-yarn", "qwen2-linear", "qwen3")
# Prefill, three single tokens, a verify-sized piece, and the rest.
CUTS = (16, 17, 18, 19, 24)


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_cached_decode_equal_transformers(name: str, reference_models: dict[str, ReferenceModel]) -> None:
    reference = reference_models[name]
    model = load_target(reference.folder, single_rank_communicator())
    for cuts in ((), CUTS):
        logits = cached_logits(model, reference.token_ids, cuts)
        torch.testing.assert_close(logits, reference.logits, rtol=1e-4, atol=2e-5)


def test_captures_the_streams_entering_layers(reference_models: dict[str, ReferenceModel]) -> None:
    reference = reference_models["qwen3"]
    model = load_target(reference.folder, single_rank_communicator(), capture_layers=(0, 2, 3))
    with torch.inference_mode():
        output = model(reference.token_ids, torch.arange(40), SimpleAttention())
    assert output.aux_TAD is not None
    torch.testing.assert_close(output.aux_TAD[:, 0], reference.hidden_states[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.aux_TAD[:, 1], reference.hidden_states[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.hidden_TD, reference.hidden_states[3], rtol=1e-4, atol=1e-5)
    normed = torch.nn.functional.rms_norm(output.aux_TAD[:, 2], (64,), model.norm, model.config.rms_norm_eps)
    torch.testing.assert_close(normed, output.hidden_TD, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [(2, 1), (4,), (-1, 2)])
def test_refuses_layers_that_do_not_exist(layers: tuple[int, ...], reference_models: dict[str, ReferenceModel]) -> None:
    config = read_model_config(reference_models["qwen3"].folder)
    with pytest.raises(ConfigError, match=r"0\.\.3"):
        LlamaForCausalLM(config, single_rank_communicator(), layers)


def test_gradients_reach_every_parameter(reference_models: dict[str, ReferenceModel]) -> None:
    reference = reference_models["llama-biased-yarn"]
    model = LlamaForCausalLM(read_model_config(reference.folder), single_rank_communicator())
    initialize(model, seed=1)
    hidden = model(reference.token_ids, torch.arange(40), SimpleAttention()).hidden_TD
    torch.nn.functional.cross_entropy(model.logits(hidden)[:-1], reference.token_ids[1:]).backward()
    without = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert without == []


def test_compiles_as_one_graph(reference_models: dict[str, ReferenceModel]) -> None:
    reference = reference_models["qwen3"]
    model = load_target(reference.folder, single_rank_communicator())

    def final_logits(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return model.logits(model(token_ids, positions, SimpleAttention()).hidden_TD)

    compiled = torch.compile(final_logits, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(reference.token_ids, torch.arange(40)), reference.logits, rtol=1e-4, atol=2e-5)


def test_bf16_model_keeps_exact_rope_frequencies(reference_models: dict[str, ReferenceModel]) -> None:
    reference = reference_models["llama-tied-llama3"]
    exact = load_target(reference.folder, single_rank_communicator())
    loaded = load_target(reference.folder, single_rank_communicator(), torch.bfloat16)
    for low in (loaded, load_target(reference.folder, single_rank_communicator()).to(torch.bfloat16)):
        assert low.norm.dtype == torch.bfloat16
        assert torch.equal(low.rope.signed_frequencies, exact.rope.signed_frequencies)
