"""One entry of a server's catalogue: what it changes, where it exists, what forbids it, and what it should do.

Entries are data in common.yaml, sglang.yaml and vllm.yaml. Flags are checked against the servers' own argument
definitions by scripts/check_catalogue. An entry says nothing about whether it pays: that is the cost model's business.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.reported import Fabric
from fastverify.diagnosis.version_range import VersionRange
from fastverify.servers.server import Setting
from fastverify.tuning.interval import Interval

SERVERS = ("sglang", "vllm")
Kind = Literal["setting", "measurement", "model"]
Risk = Literal["safe", "guarded", "host"]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gates(_Entry):
    """Where an entry can work at all. Empty: everywhere. `why` is shown where it is refused."""

    fabrics: tuple[Fabric, ...] = ()
    world_sizes: tuple[int, ...] = ()
    min_world_size: int = 1
    compute_capabilities: tuple[str, ...] = ()
    packages: dict[str, VersionRange] = {}
    modules: tuple[str, ...] = ()
    """Python modules of this project that the entry needs."""
    moe_only: bool = False
    chain_only: bool = False
    draft_model_only: bool = False
    speculative_only: bool = False
    min_numa_nodes: int = 1
    present_flags: tuple[str, ...] = ()
    """One of these is set in the present launch."""
    why: str = ""


class Effect(_Entry):
    """What the cost model is told. `knobs` are its settings; factors are (low, mid, high)."""

    knobs: dict[str, Setting] = {}
    all_reduce_share: tuple[float, float, float] | None = None
    """New over present time of one all-reduce, where no table of this backend is published."""
    phase_factors: dict[str, tuple[float, float, float]] = {}
    source: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the cost model can be told anything."""
        return bool(self.knobs or self.all_reduce_share or self.phase_factors)

    @property
    def factors(self) -> dict[str, Interval]:
        """Phase factors as intervals."""
        return {name: Interval(*factor) for name, factor in self.phase_factors.items()}


class CatalogueEntry(_Entry):
    """`flags` with a null value are removed; `speculative_config` is merged into vLLM's JSON flag of that name."""

    id: str
    title: str
    why: str
    kind: Kind = "setting"
    flags: dict[str, Setting | None] = {}
    speculative_config: dict[str, Any] = {}
    env: dict[str, str] = {}
    versions: VersionRange = VersionRange()
    nccl: VersionRange = VersionRange()
    gates: Gates = Gates()
    exclusive_group: str | None = None
    conflicts: tuple[str, ...] = ()
    conflict_flags: tuple[str, ...] = ()
    """Flags of the present launch beside which it never runs."""
    risk: Risk = "safe"
    effort_min: float
    probability: float
    effect: Effect = Effect()
    engagement: str
    """What shows that it took effect."""
    undo: str = "restart without it"
    same_drafts: bool = True
    source: str


@cache
def catalogue_of(server: str) -> tuple[CatalogueEntry, ...]:
    """Entries of a server, the common ones first. Empty for a server that has no catalogue."""
    if server not in SERVERS:
        return ()
    folder = files("fastverify.tuning.catalogue")
    documents = [
        yaml.safe_load(folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8")) for name in ("common", server)
    ]
    return tuple(CatalogueEntry.model_validate(entry) for document in documents for entry in document["experiments"])
