"""A corpus that a tiny model learns in seconds: templated Python functions over a small set of names."""

import random
from pathlib import Path

from fastverify.training.corpus.build import TRAINING_FILE, held_out_file
from fastverify.training.corpus.documents import Document
from fastverify.training.corpus.tokens import encode_documents, train_tokenizer, write_tokens
from fastverify.training.draft import DraftOptions
from fastverify.training.target import TargetOptions

VOCAB_SIZE = 384
NAMES = ("width", "height", "count", "total", "price", "weight")
VERBS = ("add", "scale", "clamp", "double", "halve")


def templated_function(rng: random.Random) -> str:
    verb, name = rng.choice(VERBS), rng.choice(NAMES)
    return (
        f"def {verb}_{name}(self, value):\n"
        f'    """Return the {name} after the {verb} step."""\n'
        f"    self.{name} = {verb}(self.{name}, value)\n"
        f"    return self.{name}\n"
    )


def documents(count: int, seed: int, held_out: bool) -> list[Document]:
    rng = random.Random(seed)
    return [Document("templates", "code", f"{i}.py", templated_function(rng), held_out) for i in range(count)]


def write_corpus(folder: Path, num_held_out: int = 60) -> Path:
    training, held_out = documents(600, 1, False), documents(num_held_out, 2, True)
    tokenizer = train_tokenizer((document.text for document in training), VOCAB_SIZE)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokens(folder / TRAINING_FILE, encode_documents(tokenizer, training))
    write_tokens(folder / held_out_file("templates"), encode_documents(tokenizer, held_out))
    return folder


def tiny_target_options(corpus: Path, folder: Path, max_steps: int) -> TargetOptions:
    return TargetOptions(
        corpus=corpus,
        folder=folder,
        minutes=0.2,
        hidden_size=64,
        num_layers=3,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        window=64,
        batch_size=16,
        peak_lr=1e-2,
        device="cpu",
        max_steps=max_steps,
    )


def tiny_draft_options(corpus: Path, target: Path, folder: Path, max_steps: int) -> DraftOptions:
    return DraftOptions(
        corpus=corpus,
        target=target,
        folder=folder,
        minutes=0.2,
        window=64,
        batch_size=8,
        own_sequences=64,
        peak_lr=5e-3,
        device="cpu",
        max_steps=max_steps,
    )
