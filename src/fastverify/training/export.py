"""A trained model as the folder that engines read: bf16 safetensors in files below 15 MB, and the tokenizer."""

from __future__ import annotations

from pathlib import Path

from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.export import save_draft, save_target
from fastverify.models.llama import LlamaForCausalLM
from fastverify.training.tokenizer_files import write_tokenizer_files

# Files above 15 MB are awkward in a source repository.
MAX_SHARD_BYTES = 12_000_000


def export_target(model: LlamaForCausalLM, tokenizer_file: Path, folder: Path) -> None:
    """Write the target in Hugging Face's layout with its tokenizer."""
    save_target(model, folder, max_shard_bytes=MAX_SHARD_BYTES)
    write_tokenizer_files(tokenizer_file, folder, model.config.max_position_embeddings)


def export_draft(head: Eagle3Head, folder: Path) -> None:
    """Write the head in the layout that SGLang and vLLM read."""
    save_draft(head, folder)
