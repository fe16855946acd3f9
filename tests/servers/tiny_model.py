"""A checkpoint of random weights small enough to start in a second: target, EAGLE-3 head, byte-level tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path


def write_tiny_model(folder: Path) -> dict[str, str]:
    """Write it below `folder`; the settings `model` and `draft` that name it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from fastverify.model_config import Eagle3Config, ModelConfig
    from fastverify.models.random_weights import write_random_draft, write_random_target

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    sizes = ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=len(alphabet),
    )
    head = Eagle3Config(
        layer=replace(sizes, num_layers=1),
        draft_vocab_size=sizes.vocab_size,
        target_hidden_size=sizes.hidden_size,
        capture_layers=(1, 2, 3),
        capture_rule="chosen by the test",
    )
    target, draft = folder / "target", folder / "draft"
    write_random_target(sizes, target, seed=1)
    write_random_draft(head, draft, seed=2)
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(target / "tokenizer.json"))
    return {"model": str(target), "draft": str(draft)}
