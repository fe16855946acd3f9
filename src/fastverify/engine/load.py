"""Puts one rank's engine together: models from their folders, caches of the right size, the configured drafter.

The only place that maps settings to parts. Every rank calls it with the same settings and its own communicator.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from fastverify.comm.communicator import Communicator, single_rank_communicator
from fastverify.engine.config import EngineConfig
from fastverify.engine.core import EngineCore
from fastverify.engine.drafters.drafter import Drafter
from fastverify.engine.drafters.eagle3 import Eagle3Drafter
from fastverify.engine.drafters.ngram import NgramDrafter
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.model_folders import draft_folder, target_folder
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.target_runner import TargetRunner
from fastverify.errors import ConfigError
from fastverify.model_config import Eagle3Config, ModelConfig, read_eagle3_config, read_model_config
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.kernels import describe_kernels
from fastverify.models.linear import pack_linears
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.weights import load_draft, load_target

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_core(config: EngineConfig, communicator: Communicator) -> EngineCore:
    """The engine of this rank, ready to step."""
    dtype = _DTYPES[config.dtype]
    folder = target_folder(config.model)
    model_config = read_model_config(folder)
    _check_length(config, model_config)
    head_config = None
    if config.drafter == "eagle3":
        head_config = read_eagle3_config(draft_folder(config.draft), model_config)
        _check_branching(config, head_config)
    capture_layers = head_config.capture_layers if head_config else ()
    model = load_target(folder, communicator, dtype, capture_layers)
    pack_linears(model)
    if head_config is None:
        return create_core(config, model, None)
    is_sharded = config.draft_placement == "sharded"
    draft_communicator = communicator if is_sharded else single_rank_communicator()
    head = load_draft(draft_folder(config.draft), model, draft_communicator, dtype, head_config)
    pack_linears(head)
    return create_core(config, model, head)


def create_core(config: EngineConfig, model: LlamaForCausalLM, head: Eagle3Head | None) -> EngineCore:
    """The engine of this rank over loaded models."""
    communicators = [model.communicator]
    if head is not None and head.communicator is not model.communicator:
        communicators.append(head.communicator)
    clock = PhaseClock(communicators)
    sizes, dtype = model.config, _DTYPES[config.dtype]
    num_rows = config.max_seq_len + config.num_verify_tokens
    cache = KVCache(sizes.num_layers, config.max_batch, num_rows, model.num_local_kv_heads, sizes.head_dim, dtype)
    return EngineCore(config, TargetRunner(model, cache), _create_drafter(config, head, clock, dtype), clock)


def describe(config: EngineConfig, communicator: Communicator) -> dict[str, Any]:
    """What "auto" settings became, and the sizes of the models; for `/server_info` and records."""
    model_config = read_model_config(target_folder(config.model))
    description: dict[str, Any] = {
        "resolved": {
            "comm_backend": communicator.backend_name,
            "choice_reason": communicator.choice_reason,
            "fuse_rmsnorm": communicator.fuse_rmsnorm,
            "kernels": describe_kernels(_DTYPES[config.dtype]),
        },
        "model": asdict(model_config),
    }
    if config.drafter == "eagle3":
        head = read_eagle3_config(draft_folder(config.draft), model_config)
        description["draft_model"] = {
            "draft_vocab_size": head.draft_vocab_size,
            "capture_layers": head.capture_layers,
            "capture_rule": head.capture_rule,
        }
    return description


def _create_drafter(
    config: EngineConfig, head: Eagle3Head | None, clock: PhaseClock, dtype: torch.dtype
) -> Drafter | None:
    if head is not None:
        return Eagle3Drafter(head, config, clock, dtype)
    return NgramDrafter(config, clock) if config.drafter == "ngram" else None


def _check_length(config: EngineConfig, model: ModelConfig) -> None:
    if config.max_seq_len > model.max_position_embeddings:
        raise ConfigError(
            f"max_seq_len must be at most the model's {model.max_position_embeddings} positions, "
            f"got {config.max_seq_len}."
        )


def _check_branching(config: EngineConfig, head: Eagle3Config) -> None:
    if config.top_k > head.draft_vocab_size:
        raise ConfigError(
            f"top_k must be at most the {head.draft_vocab_size} tokens of the draft vocabulary, got {config.top_k}."
        )
