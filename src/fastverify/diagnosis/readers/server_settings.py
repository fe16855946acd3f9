"""From a server's own setting names to ours: the one place where SGLang's and vLLM's flags are converted.

The same names come from a launch command, the settings that a log prints, and `/server_info`. The servers count one
differently: SGLang's `speculative_num_draft_tokens` holds the current token, vLLM's `num_speculative_tokens` does not.
Sources: argument definitions of SGLang 0.5.5 and 0.5.23, vLLM 0.11.0 and 0.33.0; docs/glossary.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from fastverify.diagnosis.readers.python_text import settings_after
from fastverify.diagnosis.readers.reading import AnyArm, ReadingBuilder, whole

ServerName = Literal["sglang", "vllm"]

# Spellings that an argument parser also takes -> the setting's name.
ALIASES: Mapping[ServerName, Mapping[str, str]] = {
    "sglang": {
        "model": "model_path",
        "tp": "tp_size",
        "tensor_parallel_size": "tp_size",
        "ep": "ep_size",
        "expert_parallel_size": "ep_size",
        "speculative_algo": "speculative_algorithm",
        "speculative_draft": "speculative_draft_model_path",
        "speculative_draft_model": "speculative_draft_model_path",
        "mem_fraction": "mem_fraction_static",
    },
    "vllm": {
        "tp": "tensor_parallel_size",
        "ep": "enable_expert_parallel",
        "pp": "pipeline_parallel_size",
        "dp": "data_parallel_size",
        "sc": "speculative_config",
        "cc": "compilation_config",
        "O": "optimization_level",
        "q": "quantization",
        "spec_method": "speculative_config.method",
        "spec_model": "speculative_config.model",
        "spec_tokens": "speculative_config.num_speculative_tokens",
        # Flags of the first engine, before --speculative-config.
        "speculative_model": "speculative_config.model",
        "num_speculative_tokens": "speculative_config.num_speculative_tokens",
        "speculative_draft_tensor_parallel_size": "speculative_config.draft_tensor_parallel_size",
    },
}
# As vLLM prints a speculative configuration.
_SHORTENED = {"num_spec_tokens": "num_speculative_tokens"}
_NESTED = ("speculative_config", "compilation_config", "profiler_config", "parallel_config")
_WITHOUT_STEPS = ("ngram", "ngram_gpu", "suffix")
# Setting -> name of the fact; the value is kept as it is.
_SAME: Mapping[ServerName, Mapping[str, str]] = {
    "sglang": {
        "tp_size": "tp",
        "ep_size": "ep",
        "speculative_num_steps": "num_draft_steps",
        "speculative_eagle_topk": "top_k",
        "speculative_num_draft_tokens": "num_verify_tokens",
        "speculative_draft_model_path": "draft_model",
        "max_running_requests": "log.max_running_requests",
        "cuda_graph_max_bs": "log.cuda_graph_max_batch",
        "cuda_graph_max_bs_decode": "log.cuda_graph_max_batch",
    },
    "vllm": {
        "tensor_parallel_size": "tp",
        "speculative_config.model": "draft_model",
        "max_num_seqs": "log.max_running_requests",
    },
}
# Arbitrary: SGLang 0.5.23 prints about 450 settings.
MAX_RESOLVED = 1000
_COUNTS = {"tp", "ep", "num_draft_steps", "top_k", "num_verify_tokens"}


def canonical(server: ServerName, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the server's full names, nested configurations as `speculative_config.method`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        plain = name.lstrip("-").replace("-", "_")
        plain = ALIASES[server].get(plain, plain)
        head, dot, rest = plain.partition(".")
        full = ALIASES[server].get(head, head) + dot + rest
        found |= _flattened(full, value)
    return found


def has_drafter(server: ServerName, settings: Mapping[str, Any]) -> bool:
    """Whether these settings, under canonical names, start a server that drafts."""
    if server == "sglang":
        return _is_given(settings.get("speculative_algorithm"))
    return any(name.startswith("speculative_config.") and _is_given(value) for name, value in settings.items())


def arm_of(server: ServerName, settings: Mapping[str, Any]) -> AnyArm:
    """The arm that a launch with these settings serves."""
    return "speculative" if has_drafter(server, settings) else "plain"


def add_settings(builder: ReadingBuilder, server: ServerName, settings: Mapping[str, Any], line: int | None) -> None:
    """Our names for these settings, which must be canonical."""
    arm = arm_of(server, settings)
    for name, value in facts_of(server, settings).items():
        builder.add(name, value, line, arm="both" if name.startswith("model.") else arm)


def add_resolved(builder: ReadingBuilder, server: ServerName, settings: Mapping[str, Any], line: int | None) -> None:
    """Every setting that a server says it runs with, and what it means."""
    found = canonical(server, settings)
    scalars = {name: value for name, value in found.items() if isinstance(value, str | int | float | bool)}
    for name, value in list(scalars.items())[:MAX_RESOLVED]:
        # vLLM prints `torch.bfloat16` for what the flag calls bfloat16.
        known = value.removeprefix("torch.") if isinstance(value, str) else value
        builder.add(f"launch.resolved.{name}", known, line, arm=arm_of(server, found))
    add_settings(builder, server, found, line)


def facts_of(server: ServerName, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Our names and values for what canonical settings say."""
    facts: dict[str, Any] = {}
    for name, ours in _SAME[server].items():
        value = settings.get(name)
        if _is_given(value):
            facts[ours] = whole(value) if ours in _COUNTS or ours.startswith("log.") else value
    model = settings.get("model_path" if server == "sglang" else "model")
    if _is_given(model):
        facts["model.name"] = model
    if _is_given(settings.get("quantization")):
        facts["model.quantization"] = settings["quantization"]
    if has_drafter(server, settings):
        facts = (_sglang_drafter(settings) if server == "sglang" else _vllm_drafter(settings)) | facts
    return {name: value for name, value in facts.items() if value is not None}


def _sglang_drafter(settings: Mapping[str, Any]) -> dict[str, Any]:
    steps, top_k = whole(settings.get("speculative_num_steps")), whole(settings.get("speculative_eagle_topk"))
    return {
        "method": str(settings["speculative_algorithm"]).rpartition(".")[2].lower(),
        # A chain: the server sets the number of verify tokens to steps + 1 by itself.
        "num_verify_tokens": steps + 1 if steps and top_k == 1 else None,
    }


def _vllm_drafter(settings: Mapping[str, Any]) -> dict[str, Any]:
    model = str(settings.get("speculative_config.model", ""))
    method = str(
        settings.get("speculative_config.method") or ("ngram" if model in ("[ngram]", "ngram") else "")
    ).lower()
    drafts = whole(settings.get("speculative_config.num_speculative_tokens"))
    return {
        "method": method or None,
        "num_verify_tokens": drafts + 1 if drafts else None,
        "top_k": 1 if drafts else None,
        "num_draft_steps": drafts if method and method not in _WITHOUT_STEPS else None,
    }


def _flattened(name: str, value: Any) -> dict[str, Any]:
    """A nested configuration, given as an object, as JSON text or as Python prints one, by its dotted names."""
    if name not in _NESTED or value in (None, "None", ""):
        return {name: value}
    if isinstance(value, str):
        value = _decoded(value)
    if not isinstance(value, Mapping):
        return {name: value}
    return {f"{name}.{_SHORTENED.get(key, key)}": item for key, item in value.items()}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return settings_after(f"={text}", "=") or text


def _is_given(value: object) -> bool:
    return value not in (None, "", "None", "null", "none", "NONE")
