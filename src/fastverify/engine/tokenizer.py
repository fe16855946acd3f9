"""Text to token ids and back, with the tokenizer.json of a checkpoint; answers are decoded a piece at a time.

A piece never ends inside a UTF-8 character: bytes that may still become one are held back until it is whole, or until
the answer ends. Knows no model and imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastverify.errors import ConfigError, EnvironmentMissingError

REPLACEMENT = "\ufffd"


class Tokenizer:
    """The tokenizer of one checkpoint."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read `tokenizer.json`. Raises ConfigError where it is missing or damaged."""
        try:
            import tokenizers
        except ImportError as error:
            raise EnvironmentMissingError(
                "text needs the tokenizers package. Install fastverify[torch], which brings it."
            ) from error
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"a model folder must hold tokenizer.json, but {model_dir} has none.")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # noqa: BLE001 - the package raises plain Exception for a damaged file
            raise ConfigError(f"{path} must be a tokenizer file, but it cannot be read: {error}.") from error

    @property
    def vocab_size(self) -> int:
        """Token ids are below this; a model may have more rows, as padding."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. `add_special_tokens` False is for text that names its own, as chat templates write it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens; broken UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def decoder(self) -> IncrementalDecoder:
        """A decoder for one answer."""
        return IncrementalDecoder(self)


class IncrementalDecoder:
    """Decodes one answer. The pieces together are the text of all tokens at once.

    A token's text may depend on its neighbours (a leading space, a character over several tokens), so each step decodes
    a window that begins with tokens already shown and gives what is new.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_shown = 0
        """Tokens at the beginning of the window whose text was given out."""
        self._shown = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that is certain after these tokens."""
        self._window += token_ids
        text = self._tokenizer.decode(self._window)
        if not token_ids or text.endswith(REPLACEMENT):
            return ""
        piece = text[len(self._shown) :]
        # The next window begins with the tokens shown now: enough context, and decoding stays short.
        del self._window[: self._num_shown]
        self._num_shown = len(self._window)
        self._shown = self._tokenizer.decode(self._window)
        return piece

    def finish(self) -> str:
        """What was held back; an unfinished character is U+FFFD."""
        return self._tokenizer.decode(self._window)[len(self._shown) :]
