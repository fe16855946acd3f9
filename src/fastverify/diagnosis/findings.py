"""Finding: one rule that fired, with its numbers, its threshold and where the threshold comes from.

A finding names the next thing to do or to measure. It changes nothing by itself.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.evidence import Evidence

Confidence = Literal["high", "medium", "low"]


class Finding(BaseModel):
    """`numbers` carry their unit in their name; `threshold` is what the deciding number was held against."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    title: str
    numbers: dict[str, float]
    threshold: float
    threshold_source: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    next: str
    arms: tuple[str, ...] = ()
    """Names of the reported arms that it is about; empty where there is only one or it concerns all."""
    experiments: tuple[str, ...] = ()
    """Ids of catalogue experiments that follow from it."""
