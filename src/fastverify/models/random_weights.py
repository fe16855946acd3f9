"""Models with random weights: the start of training, and checkpoints of any size for tests and cost studies."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fastverify.comm.communicator import single_rank_communicator
from fastverify.model_config import Eagle3Config, ModelConfig
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.export import save_draft, save_target
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.vocab_parallel import VocabParallelEmbedding

# Source: `initializer_range` of transformers' LlamaConfig.
_STANDARD_DEVIATION = 0.02


@torch.no_grad()
def initialize(model: nn.Module, seed: int, standard_deviation: float = _STANDARD_DEVIATION) -> None:
    """Matrices from a normal distribution; norms stay one and biases zero. The same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            values = torch.empty(parameter.shape).normal_(0.0, standard_deviation, generator=generator)
            parameter.copy_(values)


def write_random_target(config: ModelConfig, folder: Path, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """A checkpoint of `config` in `folder`."""
    model = LlamaForCausalLM(config, single_rank_communicator())
    initialize(model, seed)
    save_target(model, folder, dtype)


def write_random_draft(config: Eagle3Config, folder: Path, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """An EAGLE-3 head in `folder`. A smaller draft vocabulary is spread evenly over the target's."""
    communicator = single_rank_communicator()
    embedding = VocabParallelEmbedding(config.layer.vocab_size, config.layer.hidden_size, communicator)
    head = Eagle3Head(config, communicator, embedding)
    initialize(head, seed)
    draft_ids = torch.arange(config.draft_vocab_size)
    head.d2t.copy_(draft_ids * config.layer.vocab_size // config.draft_vocab_size - draft_ids)
    save_draft(head, folder, dtype)
