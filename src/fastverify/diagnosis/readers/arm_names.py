"""Which arm a file is about, from the words of its name, for outputs that do not tell."""

from __future__ import annotations

import re
from pathlib import PurePath

from fastverify.diagnosis.readers.reading import AnyArm

_PLAIN = {"plain", "base", "baseline", "nospec", "vanilla", "autoregressive", "ar", "without"}
_SPECULATIVE = {
    *("spec", "speculative", "eagle", "eagle2", "eagle3", "mtp", "ngram", "nextn", "medusa", "draft", "dflash"),
    "suffix",
}


def arm_from_name(source: str) -> AnyArm:
    """`runs/plain_b1.json` is plain; a name with words of both arms, or none, tells nothing."""
    parts = PurePath(source).parts[-2:]
    words = {word for part in parts for word in re.split(r"[^a-z0-9]+", part.lower()) if word}
    plain = bool(words & _PLAIN) or {"no", "spec"} <= words
    speculative = bool(words & _SPECULATIVE) and not {"no", "spec"} <= words
    if plain == speculative:
        return "both"
    return "plain" if plain else "speculative"
