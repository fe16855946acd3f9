"""Where a command writes: data on stdout, progress and remarks on stderr; rich honours NO_COLOR and dumb terminals."""

import errno
import json
import sys
from typing import Any

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout; numbers that JSON cannot hold are a bug, not a `NaN`."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    sys.stdout.write(text)


def print_text(text: str) -> None:
    """Plain text on stdout without markup or wrapping."""
    out.print(text, markup=False, soft_wrap=True)
