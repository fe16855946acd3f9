"""Settings as Python prints them: `ServerArgs(tp_size=8, ...)`, `Namespace(...)`, `{'tp_size': 8, ...}`.

Such text is not always valid Python (`<Format.AUTO: 'auto'>`, `VllmConfig` objects), so it is split at its own commas
and every value is read alone; what is no literal stays text. One pass over the characters, so hostile text costs no
more than long text.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Any

_OPEN, _CLOSE, _QUOTES = "([{<", ")]}>", "'\""
# Arbitrary: the longest literal that a server prints for one setting is a list of a few hundred batch sizes.
MAX_LITERAL_CHARS = 20_000


def settings_after(line: str, marker: str) -> dict[str, Any]:
    """Settings of the bracketed text that follows a marker, such as `server_args=`; empty where there is none.

    With no bracket after the marker, everything to the end of the line is read as `name=value, ...`.
    """
    _, found, rest = line.partition(marker)
    if not found:
        return {}
    body = _bracketed(rest)
    return dict(_pairs(body if body is not None else rest))


def literal(text: str) -> Any:
    """The value of a literal; the text itself where it is none."""
    text = text.strip()
    if len(text) > MAX_LITERAL_CHARS:
        return text
    try:
        with warnings.catch_warnings():
            # `8or` makes the parser warn on the user's terminal.
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return text


def _bracketed(text: str) -> str | None:
    """Inside of the first bracket, where it opens within a name's length; a missing end is the end of the text."""
    start = min((place for mark in "({" if (place := text.find(mark, 0, 40)) >= 0), default=-1)
    if start < 0 or "=" in text[:start]:
        return None
    depth = 0
    for place, character, quoted in _scan(text, start):
        if not quoted:
            depth += (character in _OPEN) - (character in _CLOSE)
            if depth == 0:
                return text[start + 1 : place]
    return text[start + 1 :]


def _pairs(body: str) -> Iterator[tuple[str, Any]]:
    for item in _split(body, ","):
        separator = "=" if _is_name(item.partition("=")[0].strip()) else ":"
        name, found, value = item.partition(separator)
        name = name.strip().strip(_QUOTES)
        if found and _is_name(name):
            yield name, literal(value)


def _is_name(text: str) -> bool:
    return len(text) < 100 and text.replace(".", "_").replace("-", "_").isidentifier()


def _split(text: str, separator: str) -> Iterator[str]:
    """Split outside of brackets and quotes."""
    depth = start = 0
    for place, character, quoted in _scan(text, 0):
        if quoted:
            continue
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == separator and depth <= 0:
            yield text[start:place]
            start, depth = place + 1, 0
    yield text[start:]


def _scan(text: str, start: int) -> Iterator[tuple[int, str, bool]]:
    """Place, character, and whether it is inside quotes; a quote within a word, as in `don't`, opens nothing."""
    quote = ""
    escaped = False
    for place in range(start, len(text)):
        character = text[place]
        was_quoted = bool(quote)
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in _QUOTES and not text[place - 1 : place].isalnum():
            quote = character
        yield place, character, was_quoted or bool(quote)
