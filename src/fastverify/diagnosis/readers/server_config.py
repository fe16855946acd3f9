"""The YAML file that a server's `--config` names: its flags as keys, `tensor-parallel-size: 8`.

Only a file whose every line at the margin is a key is one, and it must have a key that only a server has.
"""

from __future__ import annotations

from typing import Any

import yaml

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder
from fastverify.diagnosis.readers.server_settings import ServerName, add_settings, arm_of, canonical

KIND = "server configuration"
# Arbitrary: a hundred times a long configuration; YAML is slow to read.
MAX_CHARS = 200_000
_OWN_KEYS: dict[ServerName, tuple[str, ...]] = {
    "sglang": ("model_path", "tp_size", "mem_fraction_static", "speculative_algorithm", "speculative_num_steps"),
    "vllm": ("tensor_parallel_size", "speculative_config", "gpu_memory_utilization", "max_num_seqs", "max_model_len"),
}


def read_server_config(document: Document) -> Reading | None:
    """Flags of a YAML configuration of SGLang or vLLM."""
    values = _mapping(document)
    names = {str(name).replace("-", "_") for name in values}
    server = next((server for server, own in _OWN_KEYS.items() if names & set(own)), None)
    if server is None:
        return None
    builder = ReadingBuilder(KIND, document.source)
    settings = canonical(server, values)
    builder.add("server", server, 1)
    for name, value in values.items():
        if isinstance(value, str | int | float | bool):
            line = document.line_of(f"{name}:")
            builder.add(f"launch.flags.{name}", value, line, arm=arm_of(server, settings))
    add_settings(builder, server, settings, 1)
    return builder.build()


def _mapping(document: Document) -> dict[str, Any]:
    margin = [line for _, line in document.lines if line.strip() and not line.startswith((" ", "#", "-"))]
    if not margin or len(document.text) > MAX_CHARS or "&" in document.text:
        return {}
    if not all(line.partition(":")[0].replace("-", "_").isidentifier() and ":" in line for line in margin):
        return {}
    try:
        value = yaml.safe_load(document.text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return {str(name): item for name, item in value.items()} if isinstance(value, dict) else {}
