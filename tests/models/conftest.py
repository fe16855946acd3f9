"""Small random models that transformers makes, saved once per run, with the logits it gives."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@dataclass(frozen=True)
class ReferenceModel:
    """A saved checkpoint, a sequence longer than its original context, and transformers' answer."""

    folder: Path
    token_ids: torch.Tensor
    logits: torch.Tensor
    hidden_states: torch.Tensor  # [layers + 1, T, D]: streams entering layer i; the last is after the final norm


@pytest.fixture(scope="session")
def reference_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReferenceModel]:
    """Each covers other switches: bias, q/k norm, tied, rope scaling, shards, sizes that 2 or 4 do not divide."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    shared = {"num_hidden_layers": 3, "vocab_size": 101, "initializer_range": 0.1, "max_position_embeddings": 64}
    llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    original = {"original_max_position_embeddings": 16}
    configs = {
        "llama-tied-llama3": LlamaConfig(
            hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            tie_word_embeddings=True, rope_parameters=llama3 | original, eos_token_id=[2, 3], **shared,
        ),
        "llama-biased-yarn": LlamaConfig(
            hidden_size=80, intermediate_size=50, num_attention_heads=10, num_key_value_heads=2, head_dim=16,
            attention_bias=True, mlp_bias=True, rope_parameters=yarn | original, **shared,
        ),
        "qwen2-linear": Qwen2Config(
            hidden_size=72, intermediate_size=96, num_attention_heads=9, num_key_value_heads=3,
            tie_word_embeddings=False, **shared,
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        ),
        "qwen3": Qwen3Config(
            hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=4, head_dim=32,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **shared,
        ),
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("models")
    return {name: save_reference(config, folder / name) for name, config in configs.items()}


def save_reference(config: object, folder: Path) -> ReferenceModel:
    """Random weights everywhere, norms and biases too, in several files."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(len(folder.name))
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder, max_shard_size="60KB")
    token_ids = torch.randint(0, 101, (40,))
    with torch.no_grad():
        output = model(token_ids[None], output_hidden_states=True)
    return ReferenceModel(folder, token_ids, output.logits[0], torch.stack(output.hidden_states)[:, 0])
