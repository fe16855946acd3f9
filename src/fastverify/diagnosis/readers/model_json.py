"""A model's config.json: sizes that decide payloads, all-reduce counts and how experts grow with verify tokens.

A draft model's config (an EAGLE head) is told apart by its draft vocabulary or architecture, and gives its layers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder
from fastverify.errors import ConfigError, FastverifyError
from fastverify.model_config import ModelConfig, parse_model_config

KIND = "model config"
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def is_model_config(value: Any) -> bool:
    """Whether a JSON value is a config.json of transformers."""
    return isinstance(value, dict) and "architectures" in value and ("hidden_size" in value or "text_config" in value)


def read_model_json(document: Document) -> Reading | None:
    """Sizes of a target or a draft model."""
    raw = document.json
    if not is_model_config(raw):
        return None
    builder = ReadingBuilder(KIND, document.source)
    try:
        config = parse_model_config(raw, document.source)
    except (ConfigError, FastverifyError) as error:
        builder.notes.append(str(error))
        return builder.build()
    if _is_draft(raw, config):
        line = document.line_of('"num_hidden_layers"')
        builder.add("model.num_draft_layers", config.num_layers, line, arm="speculative")
        return builder.build()
    _add_sizes(builder, config, raw, document)
    return builder.build()


def _add_sizes(builder: ReadingBuilder, config: ModelConfig, raw: Mapping[str, Any], document: Document) -> None:
    sizes = {
        "num_layers": ("num_hidden_layers", config.num_layers),
        "hidden_size": ("hidden_size", config.hidden_size),
        "vocab_size": ("vocab_size", config.vocab_size),
        "num_experts": ("expert", config.num_experts),
        "num_experts_per_token": ("num_experts_per_tok", config.num_experts_per_token),
    }
    for name, (key, value) in sizes.items():
        builder.add(f"model.{name}", value, document.line_of(f'"{key}"') or document.line_of(key))
    dtype = config.torch_dtype.removeprefix("torch.")
    builder.add("model.activation_bytes", _BYTES.get(dtype), document.line_of("dtype"))
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else raw
    quantization = (text or raw).get("quantization_config") or raw.get("quantization_config")
    if isinstance(quantization, dict) and isinstance(quantization.get("quant_method"), str):
        builder.add("model.quantization", quantization["quant_method"], document.line_of('"quant_method"'))
    drafts = (text or raw).get("num_nextn_predict_layers")
    if isinstance(drafts, int) and not isinstance(drafts, bool) and drafts > 0:
        builder.add("model.num_draft_layers", drafts, document.line_of("num_nextn_predict_layers"), arm="speculative")


def _is_draft(raw: Mapping[str, Any], config: ModelConfig) -> bool:
    return "draft_vocab_size" in raw or "eagle" in config.architecture.lower()
