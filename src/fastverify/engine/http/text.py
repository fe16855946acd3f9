"""What the server needs of a tokenizer; engine/tokenizer.py is the real one, tests give a small one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextDecoder(Protocol):
    """Tokens of one answer to text, a piece at a time, never half a character."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class TextCodec(Protocol):
    """A tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decoder(self) -> TextDecoder: ...
