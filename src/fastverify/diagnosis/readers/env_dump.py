"""A dump of `fastverify env --json`: its typed values, and the raw text of other tools, read as if given alone.

Lines of a tool's text are counted within it, so the source of such evidence is the dump and the tool's command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastverify.diagnosis.readers.document import Document, document_of
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder

KIND = "fastverify env"
MAX_TOOLS = 50


def is_env_dump(value: Any) -> bool:
    """Whether a JSON value is a dump of ours."""
    return isinstance(value, dict) and value.get("kind") == KIND


def read_env_dump(document: Document, readers: Sequence[Callable[[Document], Reading | None]]) -> list[Reading]:
    """Readings of the values and of every tool's text."""
    dump = document.json
    builder = ReadingBuilder(KIND, document.source)
    values = dump.get("facts")
    for name, value in values.items() if isinstance(values, dict) else ():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str | int | float | bool):
                builder.add(str(name), item, document.line_of(f'"{name}"'))
    unread = dump.get("unread")
    for what, why in unread.items() if isinstance(unread, dict) else ():
        builder.notes.append(f"{document.source}: {what} could not be read: {why}")
    readings = [builder.build()]
    texts = dump.get("tools")
    for tool, text in list(texts.items())[:MAX_TOOLS] if isinstance(texts, dict) else ():
        if isinstance(text, str):
            part = document_of(f"$ {tool}\n{text}", f"{document.source}, {tool}")
            readings += [reading for read in readers if (reading := read(part)) is not None]
    return readings
