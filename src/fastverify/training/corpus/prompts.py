"""Held-out prompts of 100 to 200 tokens, cut where a person would stop typing.

Code ends after a docstring or a `def` line, prose after a paragraph, a conversation where the answer is due.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

MIN_TOKENS, MAX_TOKENS = 100, 200
_ANSWER_DUE = "<|im_start|>assistant\n"
_DEFINITION = re.compile(r"(?m)^((?:@[^\n]*\n)*)( *)(?:async )?def \w+\([^\"'#]*?\)[^\n]*:\n")
_DOCSTRING = re.compile(r'\s*r?"""[^"]*(?:"{1,2}[^"]+)*"""\n')


@dataclass(frozen=True)
class CutPrompt:
    """One prompt and the file it was cut from."""

    prompt_id: str
    text: str
    source: str


def cut_prompts(documents: list[dict[str, Any]], tokenizer: Tokenizer, count: int, seed: int) -> list[CutPrompt]:
    """`count` prompts from held-out documents of one domain, at most one of each kind per document."""
    rng = random.Random(seed)
    shuffled = rng.sample(documents, len(documents))
    prompts: list[CutPrompt] = []
    for number, document in enumerate(shuffled):
        fitting = [text for text in _cuts(document, number) if _fits(tokenizer, text)]
        if fitting:
            place = f"{document['source']}: {document['path']}"
            prompts.append(CutPrompt(f"{document['domain']}-{len(prompts):02d}", rng.choice(fitting), place))
        if len(prompts) == count:
            break
    return prompts


def _fits(tokenizer: Tokenizer, text: str) -> bool:
    return MIN_TOKENS <= len(tokenizer.encode(text).ids) <= MAX_TOKENS


def _cuts(document: dict[str, Any], number: int) -> Iterator[str]:
    """Candidate prompts; odd code documents give definitions with docstrings, even ones text up to a `def` line."""
    by_domain: dict[str, Callable[[str], Iterator[str]]] = {
        "code": _documented_definitions if number % 2 else _up_to_definitions,
        "docs": _paragraphs,
        "dictionary": _open_conversations,
    }
    return by_domain[document["domain"]](document["text"])


def _documented_definitions(text: str) -> Iterator[str]:
    for definition in _DEFINITION.finditer(text):
        docstring = _DOCSTRING.match(text, definition.end())
        if docstring and not definition.group(2):
            yield text[definition.start() : docstring.end()]


def _up_to_definitions(text: str) -> Iterator[str]:
    """Whole lines before and including a `def` line, from an earlier unindented line that follows an empty one."""
    starts = [0, *(match.end() for match in re.finditer(r"\n\n+(?=\S)", text))]
    for definition in _DEFINITION.finditer(text):
        for start in starts:
            # Arbitrary: 2 to 6 characters per token bound the search before counting tokens.
            if 2 * MIN_TOKENS <= definition.end() - start <= 6 * MAX_TOKENS:
                yield text[start : definition.end()]


def _paragraphs(text: str) -> Iterator[str]:
    """One or more whole paragraphs of prose, from the start of one; the answer continues with the next."""
    bounds = [0, *(match.end() for match in re.finditer(r"\n\n+", text))]
    for first in range(len(bounds) - 1):
        for last in range(first + 1, min(first + 4, len(bounds))):
            piece = text[bounds[first] : bounds[last]]
            if piece.rstrip().endswith((".", ":")) and sum(map(str.isalpha, piece)) > 0.7 * len(piece):
                yield piece


def _open_conversations(text: str) -> Iterator[str]:
    """A conversation up to each point where an answer is due."""
    for match in re.finditer(re.escape(_ANSWER_DUE), text):
        yield text[: match.end()]
