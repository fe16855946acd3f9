"""What `fastverify bench links` found: plain values, what follows from them, and how they look in a table. No GPU.

A measurement that could not be made is a row with a reason instead of a value. It knows what the numbers of PCIe mean,
not what they should be on this machine: bounds are of the link, verdicts compare what was measured here with itself.
Source of the collapse and staging findings: public reports, docs/all-reduce-gpu.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from fastverify.errors import ConfigError

# GB/s of one lane in one direction after line coding. Source: PCI Express base specifications 1.0 to 6.0.
_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Published: 53 to 56 of 63 GB/s on Gen5 x16 (vLLM issue 56128 and others); packet headers take the rest.
_PRACTICAL_SHARE = 0.87
# Published collapses lose 75 to 93 percent; half is far from that and from a fair share of an uplink.
_COLLAPSE_SHARE = 0.5
# Arbitrary: a link that P2P uses is at least a third as fast as the way to host memory; staged writes were a tenth.
_STAGED_SHARE = 0.33
# From the same reports. It is printed, never set.
_STAGING_SETTING = (
    'NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1;'
    'EnableResizableBar=1"'
)


class Quantity(StrEnum):
    """What a row measures; see `unit`."""

    FLAG = "flag"  # data that carries its own readiness, one way
    RELEASE_FLAG = "release flag"  # a flag stored with release, one way
    STORE = "store"
    LOAD = "load"

    @property
    def unit(self) -> str:
        """Of the row's value."""
        return "us" if self in (Quantity.FLAG, Quantity.RELEASE_FLAG) else "GB/s"


class Pattern(StrEnum):
    """What else happens during the measurement."""

    ALONE = "alone"
    BOTH_WAYS = "both ways"  # the same in the other direction at once; the value is of one direction
    ALL_AT_ONCE = "all at once"  # every GPU does it; the value is of all together


@dataclass(frozen=True)
class LinkRow:
    """One measurement by kernels of GPU `source`. `target`: "gpu 1", "own memory", or "host node 0"; -1 is all GPUs."""

    quantity: Quantity
    source: int
    target: str
    pattern: Pattern = Pattern.ALONE
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class PcieState:
    """Generation and width of a GPU's link at one moment."""

    generation: int
    width: int

    @property
    def bound_gb_per_s(self) -> float:
        """What the link carries in one direction, headers included."""
        return _LANE_GB_PER_S.get(self.generation, 0.0) * self.width

    @property
    def practical_gb_per_s(self) -> float:
        """What data gets of it at best."""
        return _PRACTICAL_SHARE * self.bound_gb_per_s


@dataclass(frozen=True)
class GpuLinks:
    """One GPU. None and empty texts are facts that the machine does not tell."""

    index: int
    name: str
    bus_address: str
    numa_node: int | None
    root_port: str
    host_native_atomics: bool
    pcie_idle: PcieState | None
    pcie_busy: PcieState | None
    pcie_max: PcieState | None
    num_nvlinks: int
    nvlink_gb_per_s: float


@dataclass(frozen=True)
class PairAccess:
    """What the driver says about GPU `source` reaching the memory of GPU `target`."""

    source: int
    target: int
    can_access: bool
    performance_rank: int
    native_atomics: bool


@dataclass(frozen=True)
class LinkReport:
    """Everything, in the order in which it is shown."""

    gpus: tuple[GpuLinks, ...]
    pairs: tuple[PairAccess, ...]
    rows: tuple[LinkRow, ...]
    num_host_nodes: int
    cuda_version: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, verdicts included."""
        verdict = judge_collapse(self)
        return {
            **asdict(self),
            "collapse": asdict(verdict),
            "hints": find_hints(self),
            "rows": [{**asdict(row), "unit": row.quantity.unit} for row in self.rows],
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> LinkReport:
        """What `to_dict` made; verdicts are worked out anew. Raises ConfigError for another document."""
        try:
            return cls(
                gpus=tuple(_read_gpu(gpu) for gpu in document["gpus"]),
                pairs=tuple(PairAccess(**pair) for pair in document["pairs"]),
                rows=tuple(_read_row(row) for row in document["rows"]),
                num_host_nodes=document["num_host_nodes"],
                cuda_version=document["cuda_version"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"links are read from what `fastverify bench links --json` prints, but this is not it: {error!r}."
            ) from error

    def find(self, quantity: Quantity, pattern: Pattern = Pattern.ALONE, target: str = "gpu") -> list[LinkRow]:
        """Rows with a value whose target starts with `target`."""
        return [
            row
            for row in self.rows
            if (row.quantity, row.pattern) == (quantity, pattern) and row.target.startswith(target) and row.value
        ]

    def typical(self, quantity: Quantity, pattern: Pattern = Pattern.ALONE, target: str = "gpu") -> float | None:
        """Median of `find`, None where nothing was measured."""
        values = [row.value for row in self.find(quantity, pattern, target) if row.value is not None]
        return median(values) if values else None

    @property
    def uses_nvlink(self) -> bool:
        """Whether every GPU has one, so that peer memory does not go over PCIe."""
        return bool(self.gpus) and all(gpu.num_nvlinks for gpu in self.gpus)


def _read_gpu(gpu: dict[str, Any]) -> GpuLinks:
    states = {name: value and PcieState(**value) for name, value in gpu.items() if name.startswith("pcie_")}
    return GpuLinks(**{**gpu, **states})


def _read_row(row: dict[str, Any]) -> LinkRow:
    fields = {name: value for name, value in row.items() if name != "unit"}
    return LinkRow(**{**fields, "quantity": Quantity(row["quantity"]), "pattern": Pattern(row["pattern"])})


@dataclass(frozen=True)
class CollapseVerdict:
    """`share` is the measured aggregate over `expected_gb_per_s`, None where nothing was measured."""

    collapsed: bool
    share: float | None
    expected_gb_per_s: float | None
    text: str


def islands(gpus: Iterable[GpuLinks]) -> list[list[int]]:
    """GPUs behind the same root port, that is on the same switch; those whose port is unknown are each alone."""
    groups: dict[str, list[int]] = {}
    for gpu in gpus:
        groups.setdefault(gpu.root_port or f"unknown {gpu.index}", []).append(gpu.index)
    return list(groups.values())


def judge_collapse(report: LinkReport) -> CollapseVerdict:
    """Whether writes from all GPUs to GPUs behind other ports lose more than sharing their uplinks explains.

    A healthy fabric carries at least one full flow out of every island, whatever the number of writers in it.
    """
    groups = islands(report.gpus)
    crossing = [row for row in report.rows if row.target == "gpus behind other ports"]
    if not crossing:
        return CollapseVerdict(False, None, None, "not measured: all GPUs are behind one port, or there is only one.")
    alone = report.typical(Quantity.STORE)
    if crossing[0].value is None or alone is None:
        return CollapseVerdict(False, None, None, f"not measured: {crossing[0].reason or 'no store to a peer worked'}.")
    expected = alone * len(groups)
    share = crossing[0].value / expected
    numbers = f"{crossing[0].value:.1f} GB/s together; {len(groups)} islands of one flow each would be {expected:.1f}"
    if report.uses_nvlink:
        return CollapseVerdict(False, share, expected, f"not a question of PCIe: peers are on NVLink ({numbers}).")
    if share < _COLLAPSE_SHARE:
        text = f"COLLAPSE: {numbers}. Try islands (8 ranks) and the all-reduces through host memory."
        return CollapseVerdict(True, share, expected, text)
    return CollapseVerdict(False, share, expected, f"no collapse: {numbers}.")


def find_hints(report: LinkReport) -> list[str]:
    """What a reader should look at, each a sentence with the numbers it rests on."""
    hints = [text for gpu in report.gpus if (text := _link_hint(gpu))]
    peer, host = report.typical(Quantity.STORE), report.typical(Quantity.STORE, target="host")
    if peer and host and not report.uses_nvlink and peer < _STAGED_SHARE * host:
        hints.append(
            f"stores to a peer run at {peer:.1f} GB/s, to host memory at {host:.1f}: the driver may stage peer writes "
            f"through system memory. Look at IOMMU, ACS and Resizable BAR first, then at the module setting "
            f"{_STAGING_SETTING}."
        )
    if any(pair.can_access and not pair.native_atomics for pair in report.pairs):
        hints.append(
            "peers have no native atomics: barriers that use remote atomics (torch symmetric memory) can hang."
        )
    return hints


def _link_hint(gpu: GpuLinks) -> str:
    if gpu.pcie_busy is None or gpu.pcie_max is None:
        return ""
    if gpu.pcie_busy.bound_gb_per_s >= gpu.pcie_max.bound_gb_per_s:
        return ""
    busy, best = gpu.pcie_busy, gpu.pcie_max
    return (
        f"GPU {gpu.index} runs at PCIe Gen{busy.generation} x{busy.width} under load and could do "
        f"Gen{best.generation} x{best.width}: look at the slot, the riser and the BIOS."
    )


def to_matrix(rows: Iterable[LinkRow], num_gpus: int, digits: int = 1) -> list[list[str]]:
    """Cells by source and target GPU: the value, `-` for the GPU itself, `no` where a reason stands instead."""
    cells = [["-" if source == target else "" for target in range(num_gpus)] for source in range(num_gpus)]
    for row in rows:
        if row.target.startswith("gpu "):
            cell = "no" if row.value is None else f"{row.value:.{digits}f}"
            cells[row.source][int(row.target.removeprefix("gpu "))] = cell
    return cells
