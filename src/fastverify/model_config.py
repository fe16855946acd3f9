"""Sizes and switches of a model, read from a Hugging Face config.json without torch.

Any architecture gives its sizes, which is all that payload arithmetic needs; `unsupported` says why the built-in
engine cannot run it, and stays empty when it can. Weights are never touched here.
Sources: transformers' LlamaConfig, Qwen2Config, Qwen3Config (old keys and the `rope_parameters` of version 5);
EAGLE-3 head keys as SafeAILab/EAGLE, SpecForge, SGLang and vLLM write and read them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastverify.errors import ConfigError, UnsupportedError

RUNNABLE_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
EAGLE3_ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3Speculator")


@dataclass(frozen=True)
class LinearRope:
    """Every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Rope:
    """Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnRope:
    """YaRN (arXiv:2309.00071). Without `attention_factor`, cos and sin are scaled as `factor` and mscale say."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    mscale: float | None
    mscale_all_dim: float | None
    attention_factor: float | None


RopeScaling = LinearRope | Llama3Rope | YarnRope | None


@dataclass(frozen=True)
class ModelConfig:
    """What a forward pass and its payloads depend on. `num_experts` is 0 for a dense model."""

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    torch_dtype: str = "float32"
    num_experts: int = 0
    num_experts_per_token: int = 0
    unsupported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads must be a multiple of num_key_value_heads, got {self.num_heads} and "
                f"{self.num_kv_heads}. Check config.json."
            )

    def require_runnable(self) -> None:
        """Raise UnsupportedError with every reason why the built-in engine cannot run this model."""
        if self.unsupported:
            raise UnsupportedError(
                f"the built-in engine cannot run this {self.architecture}: {'; '.join(self.unsupported)}. "
                f"It runs {', '.join(RUNNABLE_ARCHITECTURES)} with dense layers; for others use SGLang or vLLM."
            )


@dataclass(frozen=True)
class Eagle3Config:
    """One EAGLE-3 head. `layer` holds the sizes of its decoder layer; its `vocab_size` is the target's.

    `capture_layers` index the target's residual stream entering a layer; num_layers means the stream after the last.
    `capture_rule` says in words how they were found, because checkpoints disagree by one.
    """

    layer: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    capture_layers: tuple[int, ...]
    capture_rule: str
    fc_bias: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


def all_reduces_per_pass(config: ModelConfig) -> int:
    """All-reduces of one tensor-parallel forward: the vocabulary-parallel embedding and two per layer."""
    return 2 * config.num_layers + 1


def message_bytes(config: ModelConfig, rows: int, itemsize: int) -> int:
    """Bytes of one all-reduce when `rows` tokens are in the pass."""
    return rows * config.hidden_size * itemsize


def read_model_config(path: Path) -> ModelConfig:
    """Config of the model in `path` (a config.json or its folder). Multi-modal files give their `text_config`."""
    return _any_model_config(_read_keys(path))


def parse_model_config(raw: dict[str, Any], source: str) -> ModelConfig:
    """Config of a decoded config.json; `source` names it in errors."""
    return _any_model_config(_Keys(source, raw))


def read_eagle3_config(
    path: Path, target: ModelConfig | None = None, capture_layers: tuple[int, ...] | None = None
) -> Eagle3Config:
    """Config of the EAGLE-3 head in `path`.

    `capture_layers` overrides what the file says. `target` is needed unless the file or the override names the layers.
    Raises: UnsupportedError for MLA heads and heads of several layers; ConfigError for layers the target lacks.
    """
    keys = _read_keys(path)
    architecture = keys.architecture()
    layer_keys = keys.nested("transformer_layer_config") if "transformer_layer_config" in keys.raw else keys
    refusals = _eagle3_refusals(layer_keys, architecture)
    if refusals:
        known = ", ".join(EAGLE3_ARCHITECTURES)
        raise UnsupportedError(f"cannot run the EAGLE-3 head {keys.source}: {'; '.join(refusals)}. Known: {known}.")
    layer = _model_config(layer_keys, "LlamaForCausalLM", ())
    layers, rule = _resolve_capture(keys, architecture, target, capture_layers)
    return Eagle3Config(
        layer=layer,
        draft_vocab_size=keys.integer("draft_vocab_size", layer.vocab_size),
        target_hidden_size=keys.integer("target_hidden_size", target.hidden_size if target else layer.hidden_size),
        capture_layers=layers,
        capture_rule=rule,
        fc_bias=layer_keys.flag("bias"),
        fc_norm=keys.flag("fc_norm") or keys.flag("use_aux_norm"),
        norm_before_fc=keys.flag("norm_before_fc"),
        norm_before_residual=keys.flag("norm_before_residual"),
        norm_output=keys.flag("norm_output"),
    )


@dataclass(frozen=True)
class _Keys:
    """Typed access to a JSON object; every error names the file and the key."""

    source: str
    raw: dict[str, Any]

    def nested(self, key: str) -> _Keys:
        value = self.raw.get(key)
        if not isinstance(value, dict):
            raise ConfigError(f"{key} must be an object, got {value!r} in {self.source}.")
        return _Keys(f"{self.source}, {key}", value)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{key} must be a whole number above 0, got {value!r} in {self.source}.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.optional_number(key)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{key} must be a number, got nothing in {self.source}.")
        return value

    def optional_number(self, key: str) -> float | None:
        value = self.raw.get(key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ConfigError(f"{key} must be a number, got {value!r} in {self.source}.")
        # Python's JSON reader takes NaN and Infinity, and a model would compute with them without a word.
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{key} must be a finite number, got {value!r} in {self.source}.")
        return value

    def positive_number(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise ConfigError(f"{key} must be above 0, got {value!r} in {self.source}.")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, got {value!r} in {self.source}.")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A number, a list of numbers, or nothing, as a tuple."""
        value = self.raw.get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise ConfigError(f"{key} must be a whole number or a list of them, got {value!r} in {self.source}.")
        return tuple(items)

    def architecture(self) -> str:
        names = self.raw.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ConfigError(
                f'architectures must be a list such as ["LlamaForCausalLM"], got {names!r} in {self.source}.'
            )
        return names[0]


def _read_keys(path: Path) -> _Keys:
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"a model is a folder with a config.json, found none at {file}.") from None
    except ValueError as error:
        raise ConfigError(f"config.json must hold JSON, but {file} does not: {error}.") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"config.json must hold one JSON object, got a {type(raw).__name__} in {file}.")
    return _Keys(str(file), raw)


def _any_model_config(keys: _Keys) -> ModelConfig:
    architecture = keys.architecture()
    text = keys.nested("text_config") if "text_config" in keys.raw else keys
    return _model_config(text, architecture, _refusals(text, architecture))


def _model_config(keys: _Keys, architecture: str, unsupported: tuple[str, ...]) -> ModelConfig:
    num_heads = keys.integer("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    default_head_dim = 128 if architecture == "Qwen3ForCausalLM" else max(hidden_size // num_heads, 1)
    attention_bias = keys.flag("attention_bias")
    dtype = keys.raw.get("dtype") or keys.raw.get("torch_dtype") or "float32"
    begin = keys.integers("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=keys.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", num_heads),
        head_dim=keys.integer("head_dim", default_head_dim),
        intermediate_size=keys.integer("intermediate_size"),
        vocab_size=keys.integer("vocab_size"),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
        rope_scaling=None if any("rope" in reason for reason in unsupported) else _rope_scaling(keys),
        max_position_embeddings=keys.integer("max_position_embeddings", 2048),
        tie_word_embeddings=keys.flag("tie_word_embeddings"),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias and architecture != "Qwen2ForCausalLM",
        mlp_bias=keys.flag("mlp_bias"),
        qk_norm=architecture == "Qwen3ForCausalLM",
        eos_token_ids=keys.integers("eos_token_id"),
        bos_token_id=begin[0] if begin else None,
        torch_dtype=str(dtype),
        num_experts=_first_integer(keys, ("n_routed_experts", "num_experts", "num_local_experts")),
        num_experts_per_token=_first_integer(keys, ("num_experts_per_tok",)),
        unsupported=unsupported,
    )


def _first_integer(keys: _Keys, names: tuple[str, ...]) -> int:
    return next((keys.integer(name) for name in names if keys.raw.get(name)), 0)


def _refusals(keys: _Keys, architecture: str) -> tuple[str, ...]:
    """Every reason why the built-in engine cannot run this config."""
    reasons = []
    if architecture not in RUNNABLE_ARCHITECTURES:
        reasons.append(f"the architecture {architecture} is not implemented")
    return (*reasons, *_layer_refusals(keys))


def _layer_refusals(keys: _Keys) -> tuple[str, ...]:
    reasons = []
    activation = keys.raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        reasons.append(f"hidden_act {activation!r} is not silu")
    if keys.raw.get("quantization_config"):
        reasons.append("the weights are quantised")
    layer_types = set(keys.raw.get("layer_types") or ()) - {"full_attention"}
    if keys.raw.get("use_sliding_window") and "layer_types" not in keys.raw:
        layer_types.add("sliding_attention")
    if layer_types:
        reasons.append(f"layers of type {', '.join(sorted(map(str, layer_types)))} are not implemented")
    rope = _rope_keys(keys)
    kind = _rope_kind(rope)
    if kind not in ("default", "linear", "llama3", "yarn"):
        reasons.append(f"rope type {kind!r} is not one of default, linear, llama3, yarn")
    fraction = rope.raw.get("partial_rotary_factor", keys.raw.get("partial_rotary_factor"))
    if fraction not in (None, 1, 1.0):
        reasons.append(f"partial_rotary_factor {fraction} is not 1")
    return tuple(reasons)


def _eagle3_refusals(keys: _Keys, architecture: str) -> tuple[str, ...]:
    reasons = []
    if architecture not in EAGLE3_ARCHITECTURES:
        reasons.append(f"the architecture {architecture} is not implemented")
    if keys.raw.get("kv_lora_rank"):
        reasons.append("its attention is MLA")
    if keys.integer("num_hidden_layers", 1) != 1:
        reasons.append(f"it has {keys.raw['num_hidden_layers']} layers, not 1")
    return (*reasons, *_layer_refusals(keys))


def _rope_keys(keys: _Keys) -> _Keys:
    """The rope object under its new or its old name; empty when there is none."""
    for name in ("rope_parameters", "rope_scaling"):
        if keys.raw.get(name):
            return keys.nested(name)
    return _Keys(keys.source, {})


def _rope_kind(rope: _Keys) -> str:
    return str(rope.raw.get("rope_type") or rope.raw.get("type") or "default")


def _rope_theta(keys: _Keys) -> float:
    return _rope_keys(keys).positive_number("rope_theta", keys.positive_number("rope_theta", 10000.0))


def _rope_scaling(keys: _Keys) -> RopeScaling:
    rope = _rope_keys(keys)
    kind = _rope_kind(rope)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearRope(rope.positive_number("factor"))
    max_positions = keys.integer("max_position_embeddings", 2048)
    original = rope.integer("original_max_position_embeddings", max_positions)
    original = keys.integer("original_max_position_embeddings", original)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        return Llama3Rope(rope.positive_number("factor"), low, high, original)
    return YarnRope(
        factor=rope.positive_number("factor", max_positions / original),
        original_max_position_embeddings=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        attention_factor=rope.optional_number("attention_factor"),
    )


def _resolve_capture(
    keys: _Keys, architecture: str, target: ModelConfig | None, override: tuple[int, ...] | None
) -> tuple[tuple[int, ...], str]:
    """The captured layers and the rule that gave them, in words."""
    layers, rule = _capture_and_rule(keys, architecture, target, override)
    highest = target.num_layers if target else max(layers)
    if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] > highest:
        raise ConfigError(
            f"capture layers must be ascending numbers in 0..{highest}, got {list(layers)} ({rule}). "
            "Pass them explicitly."
        )
    return layers, rule


def _capture_and_rule(
    keys: _Keys, architecture: str, target: ModelConfig | None, override: tuple[int, ...] | None
) -> tuple[tuple[int, ...], str]:
    if override:
        return override, "given explicitly"
    own = keys.integers("fastverify_capture_layers")
    if own:
        return own, "fastverify_capture_layers of config.json, as given"
    if target is None:
        raise ConfigError(f"{keys.source} names no capture layers of its own: pass the target's config or the layers.")
    ids = _aux_layer_ids(keys)
    if not ids:
        count = target.num_layers
        return (2, count // 2, count - 3), f"no ids in config.json: [2, n//2, n-3] of the target's {count} layers"
    if architecture == "Eagle3Speculator":
        return ids, f"ids {list(ids)} as given: the speculators format counts streams entering a layer"
    if "Llama" in target.architecture or "Qwen" in target.architecture or ids[0] == 1:
        return tuple(i + 1 for i in ids), f"ids {list(ids)} + 1: they name layer outputs, as SGLang reads them"
    return ids, f"ids {list(ids)} as given: SGLang adds 1 for this target only when the first id is 1"


def _aux_layer_ids(keys: _Keys) -> tuple[int, ...]:
    name = "eagle_aux_hidden_state_layer_ids"
    nested = keys.nested("eagle_config").integers(name) if keys.raw.get("eagle_config") else ()
    return nested or keys.integers(name)
