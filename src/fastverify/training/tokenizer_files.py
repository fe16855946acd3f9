"""The tokenizer as a model folder carries it: ids of special tokens, and the small files that other tools read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fastverify.errors import ConfigError
from fastverify.training.corpus.documents import SPECIAL_TOKENS

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def special_token_id(tokenizer_file: Path, token: str) -> int:
    """Id of a special token of a tokenizer.json."""
    added = json.loads(tokenizer_file.read_text(encoding="utf-8"))["added_tokens"]
    for entry in added:
        if entry["content"] == token:
            return int(entry["id"])
    known = ", ".join(entry["content"] for entry in added)
    raise ConfigError(f"the tokenizer needs the special token {token}, but {tokenizer_file} has only: {known}.")


def write_tokenizer_files(tokenizer_file: Path, folder: Path, max_length: int) -> None:
    """Copy tokenizer.json into a model folder and write tokenizer_config.json and generation_config.json beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer_file.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    end_of_text, turn_start, turn_end, padding = SPECIAL_TOKENS
    ends = [special_token_id(tokenizer_file, token) for token in (end_of_text, turn_end)]
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_of_text,
        "eos_token": end_of_text,
        "pad_token": padding,
        "additional_special_tokens": [turn_start, turn_end],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": _CHAT_TEMPLATE,
    }
    generation_config = {"bos_token_id": ends[0], "eos_token_id": ends, "do_sample": False}
    for name, value in (("tokenizer_config.json", tokenizer_config), ("generation_config.json", generation_config)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
