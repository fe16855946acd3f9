"""The machine behind a report: how many GPUs, which kind, and what carries their collectives.

People write "8x RTX PRO 6000 Blackwell"; dumps are exact. What a dump says wins over a name, and a name over nothing.
The table holds what a product name implies; a fabric that is only implied is marked so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastverify.diagnosis.reported import Fabric, MachineFacts, ReportedFacts

# Source: vendors' data sheets. Name fragment -> compute capability, fabric of a box of several.
_GPUS: tuple[tuple[str, str, Fabric], ...] = (
    ("rtx pro 6000", "12.0", "pcie-gen5"),
    ("rtx 6000d", "12.0", "pcie-gen5"),
    ("rtx 5090", "12.0", "pcie-gen5"),
    ("rtx 5070", "12.0", "pcie-gen5"),
    ("dgx spark", "12.1", "network"),
    ("gb10", "12.1", "network"),
    ("rtx 4090", "8.9", "pcie-gen4"),
    ("rtx 5880 ada", "8.9", "pcie-gen4"),
    ("rtx 6000 ada", "8.9", "pcie-gen4"),
    ("l40", "8.9", "pcie-gen4"),
    ("l20", "8.9", "pcie-gen4"),
    ("rtx 3090", "8.6", "pcie-gen4"),
    ("a6000", "8.6", "pcie-gen4"),
    ("a10", "8.6", "pcie-gen4"),
    ("a40", "8.6", "pcie-gen4"),
    ("h100 pcie", "9.0", "pcie-gen5"),
    ("h100", "9.0", "nvlink"),
    ("h200", "9.0", "nvlink"),
    ("h800", "9.0", "nvlink"),
    ("h20", "9.0", "nvlink"),
    ("b300", "10.3", "nvlink"),
    ("b200", "10.0", "nvlink"),
    ("a100 pcie", "8.0", "pcie-gen4"),
    ("a100", "8.0", "nvlink"),
    ("a800", "8.0", "nvlink"),
    ("v100", "7.0", "nvlink"),
)
_COUNT = re.compile(r"^\s*(\d{1,4})\s*[xX*]\s*")


@dataclass(frozen=True)
class Machine:
    """None: could not tell."""

    gpu: str | None
    num_gpus: int | None
    compute_capability: str | None
    fabric: Fabric | None
    is_fabric_implied: bool
    """Whether the fabric only follows from a product name."""
    dump: MachineFacts

    @property
    def is_pcie(self) -> bool:
        """Whether collectives cross PCIe, or host memory behind it."""
        return self.fabric is not None and (self.fabric.startswith("pcie") or self.fabric == "host-memory")

    @property
    def sm(self) -> int | None:
        """Compute capability as servers write it: 120 for 12.0."""
        if self.compute_capability is None:
            return None
        major, minor = self.compute_capability.split(".")
        return int(major) * 10 + int(minor)


def machine_of(facts: ReportedFacts) -> Machine:
    """What the report says about its machine."""
    dump = facts.hardware if isinstance(facts.hardware, MachineFacts) else MachineFacts()
    name = facts.hardware if isinstance(facts.hardware, str) else dump.gpu
    count, text = _count_and_name(name)
    capability, implied = _known(text)
    told = facts.fabric or _fabric_of_dump(dump) or _fabric_of_words(text)
    return Machine(
        gpu=text or None,
        num_gpus=dump.num_gpus or count,
        compute_capability=dump.compute_capability or capability,
        fabric=told or implied,
        is_fabric_implied=told is None and implied is not None,
        dump=dump,
    )


def _count_and_name(name: str | None) -> tuple[int | None, str]:
    text = (name or "").strip()
    match = _COUNT.match(text)
    return (int(match.group(1)), text[match.end() :]) if match else (None, text)


def _known(name: str) -> tuple[str | None, Fabric | None]:
    lowered = re.sub(r"[\s_-]+", " ", name.lower()).replace("nvidia ", "").replace("geforce ", "")
    return next(((cc, fabric) for part, cc, fabric in _GPUS if re.search(rf"\b{part}", lowered)), (None, None))


def _fabric_of_words(name: str) -> Fabric | None:
    lowered = name.lower()
    if "nvlink" in lowered or "sxm" in lowered:
        return "nvlink"
    return "pcie" if "pcie" in lowered and "rtx pro" not in lowered else None


def _fabric_of_dump(dump: MachineFacts) -> Fabric | None:
    if dump.nvlink_all_pairs:
        return "nvlink"
    if dump.p2p_read is False and dump.p2p_write is False:
        return "host-memory"
    if dump.worst_link in ("PIX", "PXB", "PHB", "NODE", "SYS"):
        generations: dict[int | None, Fabric] = {3: "pcie-gen3", 4: "pcie-gen4", 5: "pcie-gen5"}
        return generations.get(dump.pcie_max_gen, "pcie")
    return None
