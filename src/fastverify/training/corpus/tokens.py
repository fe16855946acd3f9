"""The tokenizer (byte-level BPE, digits one by one) and token files: little-endian uint16, xz-compressed."""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fastverify.training.corpus.documents import SPECIAL_TOKENS, Document

END_OF_TEXT = SPECIAL_TOKENS[0]
TokenIds = npt.NDArray[np.uint16]


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE over `texts`. The special tokens get the first ids; no byte is ever unknown."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[Document]) -> TokenIds:
    """One stream: the tokens of each document followed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = (ids for batch in _batches(documents, 256) for ids in _encode(tokenizer, batch))
    return np.concatenate([np.array([*ids, end], dtype=np.uint16) for ids in encoded])


def write_tokens(path: Path, token_ids: TokenIds) -> None:
    """Write one xz-compressed token file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(token_ids.astype("<u2").tobytes(), preset=6))


def read_tokens(path: Path) -> TokenIds:
    """Token ids of a file that `write_tokens` wrote."""
    return np.frombuffer(lzma.decompress(path.read_bytes()), dtype="<u2")


def _encode(tokenizer: Tokenizer, batch: list[Document]) -> Iterator[list[int]]:
    for encoding in tokenizer.encode_batch([document.text for document in batch]):
        yield encoding.ids


def _batches(documents: list[Document], size: int) -> Iterator[list[Document]]:
    for start in range(0, len(documents), size):
        yield documents[start : start + size]
