"""What an all-reduce should take on a fabric, before anything was measured there: published tables, then NCCL's model.

A prior carries its source and a spread; rules and the cost model never show one without them. It knows no machine: a
fault of the platform is what makes a measurement differ from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict

from fastverify.diagnosis.alpha_beta import interpolate_us
from fastverify.diagnosis.nccl_model import nccl_ring_us
from fastverify.diagnosis.reported import Fabric

DATA_FILE = "data/all_reduce_priors.yaml"
# Source: measured NCCL floors of the published tables are 0.76 to 1.25 of the model's.
MODEL_SPREAD = 0.5


class PriorTable(BaseModel):
    """One published table. `us_by_world_size` maps ranks to (bytes to microseconds)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fabric: Fabric
    backend: str
    machine: str
    source: str
    licence: str
    spread: float
    note: str = ""
    us_by_world_size: dict[int, dict[int, float]]


@dataclass(frozen=True)
class PriorLatency:
    """`spread` is the relative half-width of `us`."""

    us: float
    spread: float
    source: str


@cache
def prior_tables() -> tuple[PriorTable, ...]:
    """Every published table."""
    text = files("fastverify.diagnosis").joinpath(DATA_FILE).read_text(encoding="utf-8")
    return tuple(PriorTable.model_validate(entry) for entry in yaml.safe_load(text)["tables"])


def prior_backends(fabric: Fabric, world_size: int) -> tuple[str, ...]:
    """Backends that have a table for this fabric and world size; NCCL always has its model."""
    fabric = _nearest(fabric)
    found = [t.backend for t in prior_tables() if t.fabric == fabric and world_size in t.us_by_world_size]
    return tuple(dict.fromkeys(["nccl", *found]))


def prior_latency(fabric: Fabric, world_size: int, num_bytes: float, backend: str = "nccl") -> PriorLatency | None:
    """One call; None where nothing is published for this backend and the model does not cover it."""
    if world_size < 2:
        return None
    for table in prior_tables():
        points = table.us_by_world_size.get(world_size)
        if table.fabric == _nearest(fabric) and table.backend == backend and points:
            us = interpolate_us(sorted(points.items()), num_bytes)
            return PriorLatency(us, table.spread, f"{table.machine} ({table.source})")
    if backend != "nccl":
        return None
    us = nccl_ring_us(fabric, world_size, num_bytes)
    return PriorLatency(us, MODEL_SPREAD, "NCCL's own latency model, src/graph/tuning.cc")


def _nearest(fabric: Fabric) -> Fabric:
    """Fabric whose tables stand for this one: PCIe without a generation is read as Gen4, the slower one."""
    return "pcie-gen4" if fabric == "pcie" else fabric
