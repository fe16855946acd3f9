"""The settings that the cost model understands, read from a settings mapping with the server's own defaults resolved.

Only names and meanings; no server is imported. A setting that the model does not know changes no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastverify.servers.server import Setting

DRAFT_MODEL = "eagle3"


@dataclass(frozen=True)
class Knobs:
    """One combination of settings. For a chain, top_k is 1 and num_proposed_drafts is num_draft_steps."""

    drafter: str
    draft_shape: str
    num_draft_steps: int
    top_k: int
    num_proposed_drafts: int
    comm_backend: str
    fuse_rmsnorm: bool
    draft_placement: str
    draft_token_exchange: str
    tp_size: int

    @classmethod
    def from_settings(cls, settings: Mapping[str, Setting]) -> Knobs:
        """Read what is there; what is missing has the meaning of a plain EAGLE-3 chain."""
        drafter = str(settings.get("drafter", DRAFT_MODEL))
        shape = str(settings.get("draft_shape", "chain"))
        steps = int(settings.get("num_draft_steps", 3))
        top_k = int(settings.get("top_k", 1))
        return cls(
            drafter=drafter,
            draft_shape=shape,
            num_draft_steps=steps,
            top_k=top_k,
            num_proposed_drafts=_num_proposed(
                settings.get("num_proposed_drafts", "auto"), drafter, shape, steps, top_k
            ),
            comm_backend=str(settings.get("comm_backend", "auto")),
            fuse_rmsnorm=bool(settings.get("fuse_rmsnorm", True)),
            draft_placement=str(settings.get("draft_placement", "sharded")),
            draft_token_exchange=str(settings.get("draft_token_exchange", "gather_logits")),
            tp_size=int(settings.get("tp_size", 1)),
        )

    @property
    def has_draft_model(self) -> bool:
        """Whether drafting runs a model rather than a lookup."""
        return self.drafter == DRAFT_MODEL

    @property
    def is_chain(self) -> bool:
        """Whether drafts form one path."""
        return self.draft_shape == "chain"

    @property
    def num_verify_tokens(self) -> int:
        """Rows per request of a verify pass."""
        return self.num_proposed_drafts + 1


def merge_settings(settings: Mapping[str, Setting], changes: Mapping[str, Setting]) -> dict[str, Setting]:
    """Settings after changes. A new depth or shape voids the old number of drafts, unless a new one comes with it."""
    merged = {**settings, **changes}
    if "num_proposed_drafts" not in changes and {"num_draft_steps", "draft_shape", "top_k", "drafter"} & set(changes):
        merged["num_proposed_drafts"] = "auto"
    return merged


def chain_of(num_drafts: int) -> dict[str, Setting]:
    """Changes that make the drafts a chain of this length."""
    return {"draft_shape": "chain", "top_k": 1, "num_draft_steps": num_drafts, "num_proposed_drafts": num_drafts}


def _num_proposed(value: Setting, drafter: str, shape: str, steps: int, top_k: int) -> int:
    if drafter == "none":
        return 0
    if value != "auto":
        return int(value)
    grown = top_k + (steps - 1) * top_k * top_k
    return steps if shape == "chain" else min(2 * steps, grown)
