"""Evidence: one number with its unit, its arm and the place it came from.

Everything a verdict or finding says rests on pieces of evidence. "unknown" is a value: a report that could not tell
says so and never guesses. It knows no rule and no server.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from fastverify.servers.server import Arm

UNKNOWN: Final = "unknown"


class Evidence(BaseModel):
    """`source` names a file, a page or a measurement; `line` counts from 1 where the source has lines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float | str
    unit: str
    arm: Arm | Literal["both"]
    source: str
    line: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the source could tell."""
        return self.value != UNKNOWN
