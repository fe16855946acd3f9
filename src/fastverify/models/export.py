"""Writes a model as a Hugging Face folder: config.json and safetensors that SGLang, vLLM and transformers read.

Only an unsharded model (one rank) can be written. Tensor names and layouts come from the model's own slots, so what
is written is what weights.py reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fastverify.errors import UnsupportedError
from fastverify.model_config import Eagle3Config, LinearRope, Llama3Rope, ModelConfig, YarnRope
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.sharding import Slot
from fastverify.units import BYTES_PER_MB

_MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
_ROPE_TYPES = {LinearRope: "linear", Llama3Rope: "llama3", YarnRope: "yarn"}
_DEFAULT_SHARD_BYTES = 4096 * BYTES_PER_MB


def save_target(
    model: LlamaForCausalLM,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    max_shard_bytes: int = _DEFAULT_SHARD_BYTES,
) -> None:
    """Write config.json and one or more safetensors files of at most `max_shard_bytes` each."""
    _require_unsharded(model.communicator.world_size)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", target_json(model.config, dtype))
    shards = list(_shards(_tensors(model.slots(), dtype), max_shard_bytes))
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    total_size = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    _write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    )


def save_draft(head: Eagle3Head, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write an EAGLE-3 head without its embedding, which is the target's."""
    _require_unsharded(head.communicator.world_size)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", draft_json(head.config, dtype))
    tensors = dict(_tensors(head.slots(), dtype))
    in_draft_vocabulary = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    in_draft_vocabulary[
        head.to_target_ids(torch.arange(head.config.draft_vocab_size, device=head.d2t.device)).cpu()
    ] = True
    tensors["t2d"] = in_draft_vocabulary
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def target_json(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a Llama, Qwen2 or Qwen3 model, with the keys that transformers before and after 5 read."""
    config.require_runnable()
    return {
        "architectures": [config.architecture],
        "model_type": _MODEL_TYPES[config.architecture],
        "hidden_act": "silu",
        **_sizes_json(config, dtype),
    }


def draft_json(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a head. Servers read ids as layer outputs, so they are one below our capture layers."""
    ids = [layer - 1 for layer in config.capture_layers]
    switches = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        **_sizes_json(config.layer, dtype),
        "num_hidden_layers": 1,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "bias": config.fc_bias,
        **{name: True for name in switches if getattr(config, name)},
        "eagle_aux_hidden_state_layer_ids": ids,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True},
        "fastverify_capture_layers": list(config.capture_layers),
    }


def _sizes_json(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    eos = list(config.eos_token_ids)
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_json(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _rope_json(config: ModelConfig) -> dict[str, Any] | None:
    if config.rope_scaling is None:
        return None
    given = {name: value for name, value in asdict(config.rope_scaling).items() if value is not None}
    return {"rope_type": _ROPE_TYPES[type(config.rope_scaling)], **given}


def _require_unsharded(world_size: int) -> None:
    if world_size != 1:
        raise UnsupportedError(
            f"only an unsharded model can be written, got one of {world_size} ranks. Load it on one."
        )


def _tensors(slots: Iterable[Slot], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    for slot in slots:
        tensor = slot.destination.detach().cpu()
        yield (
            slot.name,
            (tensor.to(dtype) if tensor.is_floating_point() else tensor).clone(memory_format=torch.contiguous_format),
        )


def _shards(tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if shard and sum(held.nbytes for held in shard.values()) + tensor.nbytes > max_bytes:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
