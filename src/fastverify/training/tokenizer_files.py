"""The tokenizer of a corpus, and as a model folder carries it, with the small files that other tools read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from fastverify.errors import ConfigError
from fastverify.training.corpus.documents import SPECIAL_TOKENS

END_OF_TEXT, START_OF_TURN, END_OF_TURN, PADDING = SPECIAL_TOKENS

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def load_tokenizer(corpus: Path) -> Tokenizer:
    """The tokenizer of a corpus folder."""
    file = corpus / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"a corpus folder holds tokenizer.json, found none in {corpus}. Run scripts/build_corpus.py.")
    return Tokenizer.from_file(str(file))


def special_token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of one of the special tokens."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ConfigError(f"the tokenizer needs the special token {token}, which it lacks. Rebuild the corpus.")
    return int(found)


def write_tokenizer_files(tokenizer_file: Path, folder: Path, max_length: int) -> None:
    """Copy tokenizer.json into a model folder and write tokenizer_config.json and generation_config.json beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer_file.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    ends = [special_token_id(tokenizer, token) for token in (END_OF_TEXT, END_OF_TURN)]
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": PADDING,
        "additional_special_tokens": [START_OF_TURN, END_OF_TURN],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": _CHAT_TEMPLATE,
    }
    generation_config = {"bos_token_id": ends[0], "eos_token_id": ends, "do_sample": False}
    for name, value in (("tokenizer_config.json", tokenizer_config), ("generation_config.json", generation_config)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
