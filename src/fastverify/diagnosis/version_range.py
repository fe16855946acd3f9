"""A range of versions, as the registry of bugs and the catalogues of experiments state it.

Only the numbers of a release count: "0.5.23.post1" and "0.5.23+cu130" are 0.5.23.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

_NUMBERS = re.compile(r"^[vV]?(\d{1,6}(?:\.\d{1,6}){0,3})")


class VersionRange(BaseModel):
    """`since` is in the range, `before` is not; None is open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: str | None = None
    before: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether every version is in it."""
        return self.since is None and self.before is None

    def contains(self, version: str | None) -> bool | None:
        """Whether a version lies in the range; None where it was not told or is no version."""
        if self.is_open:
            return True
        numbers = numbers_of(version)
        if numbers is None:
            return None
        since, before = numbers_of(self.since), numbers_of(self.before)
        return (since is None or numbers >= since) and (before is None or numbers < before)

    def __str__(self) -> str:
        parts = [f"since {self.since}" if self.since else "", f"before {self.before}" if self.before else ""]
        return " and ".join(part for part in parts if part) or "every version"


def numbers_of(version: str | None) -> tuple[int, ...] | None:
    """`"0.5.23.post1" -> (0, 5, 23, 0)`; None for anything else."""
    match = _NUMBERS.match(version.strip()) if version else None
    if match is None:
        return None
    numbers = [int(part) for part in match.group(1).split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))
