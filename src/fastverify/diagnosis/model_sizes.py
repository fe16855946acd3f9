"""Sizes of a target model: from its config where it was given, else from a table of names that reports mention.

Sizes give message bytes (rows x hidden x 2), the number of all-reduces per pass (2 per layer and one for the
embedding) and how many experts a pass touches. Source of the table: the published config.json of each model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastverify.diagnosis.reported import ModelFacts, ReportedFacts

# Name pattern -> layers, hidden size, experts, experts per token.
_KNOWN = (
    (r"kimi-k2", 61, 7168, 384, 8),
    (r"deepseek-(v3|r1)(?!.*distill)", 61, 7168, 256, 8),
    (r"qwen3-30b-a3b|qwen3-coder-30b", 48, 2048, 128, 8),
    (r"qwen3-235b", 94, 4096, 128, 8),
    (r"qwen3-32b", 64, 5120, 0, 0),
    (r"qwen3-8b", 36, 4096, 0, 0),
    (r"qwen3-4b", 36, 2560, 0, 0),
    (r"qwq-32b", 64, 5120, 0, 0),
    (r"qwen2(\.5)?-7b", 28, 3584, 0, 0),
    (r"gpt-oss-120b", 36, 2880, 128, 4),
    (r"gpt-oss-20b", 24, 2880, 32, 4),
    (r"llama-?3(\.[13])?-8b", 32, 4096, 0, 0),
    (r"llama-?3(\.[13])?-70b", 80, 8192, 0, 0),
    (r"llama-?2-7b", 32, 4096, 0, 0),
)
# "30B-A3B": total and active parameters, the usual way to name a mixture of experts.
_MOE_NAME = re.compile(r"\d+b-a\d+(\.\d+)?b", re.IGNORECASE)


@dataclass(frozen=True)
class ModelSizes:
    """None: could not tell. `num_experts` is 0 for a dense model."""

    name: str | None
    num_layers: int | None
    hidden_size: int | None
    num_experts: int | None
    num_experts_per_token: int | None
    activation_bytes: int = 2

    @property
    def is_moe(self) -> bool | None:
        """Whether experts are chosen per token."""
        if self.num_experts is not None:
            return self.num_experts > 0
        return True if self.name and _MOE_NAME.search(self.name) else None

    @property
    def all_reduces_per_pass(self) -> int | None:
        """Two per layer and one for the embedding, in pure tensor parallelism."""
        return None if self.num_layers is None else 2 * self.num_layers + 1

    def message_bytes(self, rows: int) -> int | None:
        """Bytes of one all-reduce of a pass over `rows` tokens."""
        return None if self.hidden_size is None else rows * self.hidden_size * self.activation_bytes


def sizes_of(facts: ReportedFacts) -> ModelSizes:
    """Sizes of the report's model."""
    told = facts.model if isinstance(facts.model, ModelFacts) else ModelFacts(name=facts.model)
    known = _known(told.name)
    return ModelSizes(
        name=told.name,
        num_layers=told.num_layers or known[0],
        hidden_size=told.hidden_size or known[1],
        num_experts=told.num_experts if told.num_experts is not None else known[2],
        num_experts_per_token=told.num_experts_per_token or known[3],
        activation_bytes=told.activation_bytes or 2,
    )


def expert_growth(num_experts: int, num_experts_per_token: int, rows: int) -> float:
    """Distinct experts of a pass over those of one row, under independent routing: an upper bound.

    Source: MoESD, arXiv:2505.19645. Cohere (2026-04) measured up to 31 % fewer, for neighbouring tokens choose alike.
    """
    if num_experts <= 0 or num_experts_per_token <= 0:
        return 1.0
    share = min(num_experts_per_token / num_experts, 1.0)
    return (1.0 - (1.0 - share) ** rows) / share


def _known(name: str | None) -> tuple[int | None, int | None, int | None, int | None]:
    lowered = (name or "").lower().replace(" ", "-").replace("_", "-")
    found = next((sizes for pattern, *sizes in _KNOWN if re.search(str(pattern), lowered)), None)
    return (None, None, None, None) if found is None else (found[0], found[1], found[2], found[3])
