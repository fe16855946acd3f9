"""WordNet's definitions as short conversations in the chat format of the bundled tokenizer.

One conversation holds the questions of a few neighbouring entries. Entries are split into training and held-out by a
hash of their definition, before conversations are made, so that no definition is on both sides.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

HELD_OUT_SHARE = 0.03
MAX_TURNS = 6
_KINDS = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}


@dataclass(frozen=True)
class Entry:
    """One sense: its words, part of speech, definition and example sentences."""

    words: tuple[str, ...]
    kind: str
    definition: str
    examples: tuple[str, ...]


def parse_entries(data: str) -> list[Entry]:
    """Entries of a `data.noun`-like file; its licence header lines start with two spaces."""
    entries = []
    for line in data.splitlines():
        if line.startswith("  ") or "|" not in line:
            continue
        fields, _, gloss = line.partition("|")
        columns = fields.split()
        words = tuple(re.sub(r"\(.*\)", "", columns[4 + 2 * i]).replace("_", " ") for i in range(int(columns[3], 16)))
        examples = tuple(re.findall(r'"([^"]+)"', gloss))
        definition = re.sub(r"\s+", " ", re.sub(r';?\s*"[^"]*".*', "", gloss)).strip(" ;")
        if definition:
            entries.append(Entry(words, _KINDS[columns[2]], definition, examples))
    return entries


def is_held_out(entry: Entry) -> bool:
    """Whether the entry's definition belongs to the held-out slice."""
    return _hash(entry.definition) % 10_000 < HELD_OUT_SHARE * 10_000


def conversations(entries: list[Entry]) -> list[str]:
    """Chat documents over neighbouring entries, 1 to MAX_TURNS turns each."""
    documents, start = [], 0
    while start < len(entries):
        turns = 1 + _hash(f"turns {start}") % MAX_TURNS
        documents.append("".join(_turn(entry) for entry in entries[start : start + turns]))
        start += turns
    return documents


def chat_turn(question: str, answer: str) -> str:
    """One question and its answer in the chat format."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def _turn(entry: Entry) -> str:
    word, choice = entry.words[0], _hash(entry.definition + entry.words[0]) % 6
    definition = f"{word[0].upper()}{word[1:]} ({entry.kind}): {entry.definition}."
    if choice == 0 and entry.examples:
        return chat_turn(f"Use {word} in a sentence.", entry.examples[0])
    if choice == 1 and len(entry.words) > 1:
        others = ", ".join(entry.words[1:])
        return chat_turn(f"What is another word for {word}, in the sense of {entry.definition}?", others)
    if choice == 2:
        example = f' For example: "{entry.examples[0]}".' if entry.examples else ""
        return chat_turn(f"Define {word}.", definition + example)
    if choice == 3:
        return chat_turn(f"Which {entry.kind} means: {entry.definition}?", word)
    return chat_turn(f"What does {word} mean?", definition)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
