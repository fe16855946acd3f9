"""Sizes from config.json files of several makers, and which layers an EAGLE-3 head reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from fastverify.errors import ConfigError, UnsupportedError
from fastverify.model_config import (
    Llama3Rope,
    ModelConfig,
    YarnRope,
    all_reduces_per_pass,
    message_bytes,
    read_eagle3_config,
    read_model_config,
)

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}  # fmt: skip
KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
        "n_routed_experts": 384, "num_experts_per_tok": 8, "kv_lora_rank": 512, "rope_theta": 50000.0,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        "quantization_config": {"quant_method": "compressed-tensors"},
    },
}  # fmt: skip
HEAD: dict[str, Any] = LLAMA | {
    "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000,
}  # fmt: skip


def written(folder: Path, raw: object) -> Path:
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def test_reads_llama(tmp_path: Path) -> None:
    config = read_model_config(written(tmp_path, LLAMA))
    assert config == read_model_config(tmp_path / "config.json")
    assert (config.head_dim, config.num_kv_heads, config.torch_dtype) == (128, 8, "bfloat16")
    assert config.rope_scaling == Llama3Rope(8.0, 1.0, 4.0, 8192)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.unsupported == ()


def test_new_rope_key_means_the_same(tmp_path: Path) -> None:
    old = read_model_config(written(tmp_path, LLAMA))
    renamed = {key: value for key, value in LLAMA.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    rope = LLAMA["rope_scaling"] | {"rope_theta": 500000.0}
    assert read_model_config(written(tmp_path, renamed | {"rope_parameters": rope, "dtype": "bfloat16"})) == old


def test_kimi_gives_sizes_for_payloads_and_says_why_it_does_not_run(tmp_path: Path) -> None:
    config = read_model_config(written(tmp_path, KIMI))
    assert (config.num_experts, config.num_experts_per_token) == (384, 8)
    assert all_reduces_per_pass(config) == 123
    assert message_bytes(config, rows=4, itemsize=2) == 57_344
    assert isinstance(config.rope_scaling, YarnRope)
    with pytest.raises(UnsupportedError, match="KimiK25ForConditionalGeneration is not implemented; .* quantised"):
        config.require_runnable()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"use_sliding_window": True}, "sliding_attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_the_engine_cannot_run_is_said_not_ignored(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        read_model_config(written(tmp_path, LLAMA | change)).require_runnable()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([1], "one JSON object, got a list"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size must be a whole number above 0, got '4096'"),
        (LLAMA | {"num_hidden_layers": None}, "num_hidden_layers must be"),
        (LLAMA | {"architectures": []}, "architectures must be a list"),
        (LLAMA | {"num_key_value_heads": 5}, "multiple of num_key_value_heads, got 32 and 5"),
        (LLAMA | {"tie_word_embeddings": "no"}, "true or false, got 'no'"),
        (LLAMA | {"eos_token_id": [1.5]}, "eos_token_id must be a whole number or a list"),
        (LLAMA | {"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number, got nan"),
        (LLAMA | {"rope_theta": float("inf")}, "rope_theta must be a finite number, got inf"),
        (LLAMA | {"rope_theta": 0}, "rope_theta must be above 0, got 0"),
        (LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "factor must be above 0, got 0.0"),
    ],
)
def test_names_the_broken_key(tmp_path: Path, raw: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_model_config(written(tmp_path, raw))


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="must hold JSON"):
        read_model_config(tmp_path)


@pytest.fixture
def llama(tmp_path: Path) -> ModelConfig:
    return read_model_config(written(tmp_path, LLAMA))


@pytest.fixture
def kimi(tmp_path: Path) -> ModelConfig:
    return read_model_config(written(tmp_path, KIMI))


IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("change", "layers", "rule"),
    [
        ({}, (2, 16, 29), "no ids"),
        ({IDS: [1, 15, 28]}, (2, 16, 29), "layer outputs"),
        ({"eagle_config": {IDS: [0, 15, 31]}}, (1, 16, 32), "layer outputs"),
        ({"architectures": ["Eagle3Speculator"], IDS: [2, 16, 29]}, (2, 16, 29), "speculators"),
        ({IDS: [1, 15, 28], "fastverify_capture_layers": [3, 5, 7]}, (3, 5, 7), "fastverify_capture_layers"),
    ],
)
def test_capture_layers_of_a_llama_target(
    tmp_path: Path, llama: ModelConfig, change: dict[str, Any], layers: tuple[int, ...], rule: str
) -> None:
    head = read_eagle3_config(written(tmp_path, HEAD | change), llama)
    assert head.capture_layers == layers
    assert rule in head.capture_rule


def test_kimi_and_deepseek_spellings_name_the_same_layers(tmp_path: Path, kimi: ModelConfig) -> None:
    for ids in ([2, 30, 58], [1, 29, 57]):
        head = read_eagle3_config(written(tmp_path, HEAD | {"eagle_config": {IDS: ids}}), kimi)
        assert head.capture_layers == (2, 30, 58)


def test_override_wins_and_needs_no_target(tmp_path: Path) -> None:
    folder = written(tmp_path, HEAD | {IDS: [1, 15, 28]})
    assert read_eagle3_config(folder, capture_layers=(4, 8)).capture_layers == (4, 8)
    with pytest.raises(ConfigError, match="names no capture layers of its own"):
        read_eagle3_config(folder)


def test_refuses_layers_the_target_lacks(tmp_path: Path, llama: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"0\.\.32, got \[2, 16, 41\]"):
        read_eagle3_config(written(tmp_path, HEAD | {IDS: [1, 15, 40]}), llama)


def test_reads_a_speculators_head(tmp_path: Path, llama: ModelConfig) -> None:
    nested = {key: value for key, value in HEAD.items() if key not in ("architectures", "draft_vocab_size")}
    raw = {
        "architectures": ["Eagle3Speculator"], "transformer_layer_config": nested, "draft_vocab_size": 32000,
        "norm_before_residual": True,
    }  # fmt: skip
    head = read_eagle3_config(written(tmp_path, raw), llama)
    assert (head.draft_vocab_size, head.layer.hidden_size, head.norm_before_residual) == (32000, 4096, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 512}, "its attention is MLA"),
        ({"num_hidden_layers": 2}, "2 layers, not 1"),
    ],
)
def test_refuses_heads_it_cannot_run(tmp_path: Path, llama: ModelConfig, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        read_eagle3_config(written(tmp_path, HEAD | change), llama)
