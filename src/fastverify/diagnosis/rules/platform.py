"""Rules on the platform: peer access, ACS, IOMMU, links, atomics. They advise; nothing here is ever changed by us.

Each is about several GPUs that talk over PCIe; with NVLink between all of them none fires.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.findings import Confidence, Finding
from fastverify.diagnosis.report import Report

_HOST = "This is the host's configuration: it needs root and a reboot, and concerns every program on it."


def acs(report: Report) -> Iterator[Finding]:
    """R-ACS: bridges send traffic between GPUs up to the root complex and back."""
    bridges = report.machine.dump.acs_redirect_bridges
    if bridges and _concerns(report):
        yield _finding(
            report,
            "R-ACS",
            f"{bridges} PCIe bridges redirect peer-to-peer traffic to the root complex (ACS).",
            {"acs_redirect_bridges": float(bridges)},
            "published: a pair behind one switch went from about 50 to about 103 GB/s with ACS off",
            "high",
            f"Turn ACS redirection off on root and switch ports, on a machine without untrusted guests. {_HOST}",
        )


def iommu(report: Report) -> Iterator[Finding]:
    """R-IOMMU: every peer access is translated, or hangs."""
    if report.machine.dump.iommu == "translated" and _concerns(report):
        yield _finding(
            report,
            "R-IOMMU",
            "The IOMMU translates DMA, also that between GPUs.",
            {},
            "published: hangs and slow peer access with translation on (vllm#33041, nccl#2079)",
            "medium",
            f"Try iommu=pt on the kernel command line. {_HOST}",
        )


def link(report: Report) -> Iterator[Finding]:
    """R-LINK: a GPU's link is narrower or slower than it can be."""
    dump = report.machine.dump
    narrow = dump.pcie_width is not None and dump.pcie_max_width is not None and dump.pcie_width < dump.pcie_max_width
    slow = dump.pcie_gen is not None and dump.pcie_max_gen is not None and dump.pcie_gen < dump.pcie_max_gen
    if not (narrow or slow):
        return
    numbers = {
        name: float(value)
        for name in ("pcie_width", "pcie_max_width", "pcie_gen", "pcie_max_gen")
        if (value := getattr(dump, name)) is not None
    }
    is_sure = narrow or dump.link_under_load is True
    yield _finding(
        report,
        "R-LINK",
        f"A GPU's link is x{dump.pcie_width or '?'} Gen{dump.pcie_gen or '?'}, it can be "
        f"x{dump.pcie_max_width or '?'} Gen{dump.pcie_max_gen or '?'}.",
        numbers,
        "link status against link capability; an idle link lowers its generation, never its width",
        "high" if is_sure else "low",
        "Read it again under load; then check slot, riser and bifurcation.",
    )


def peer_access(report: Report) -> Iterator[Finding]:
    """R-P2P: GPUs cannot reach each other, so messages go through host memory."""
    dump = report.machine.dump
    off = report.env("NCCL_P2P_DISABLE") == "1"
    if not (dump.p2p_read is False or dump.p2p_write is False or off) or not _concerns(report):
        return
    why = "NCCL_P2P_DISABLE=1 is set" if off else "`nvidia-smi topo -p2p` denies it for at least one pair"
    yield _finding(
        report,
        "R-P2P",
        f"GPUs do not reach each other: {why}. Messages go through host memory.",
        {},
        "measured on 2 GPUs: 22 us per 56 KB all-reduce through host memory, 8 to 12 us with peer access",
        "high",
        "Find out why peer access is off before tuning anything else: driver, ACS, IOMMU, or a workaround left behind.",
    )


def atomics(report: Report) -> Iterator[Finding]:
    """R-ATOMICS: symmetric memory was asked for, whose barriers need atomics over the link."""
    wanted = report.flag("enable-torch-symm-mem") is True or report.env("VLLM_USE_NCCL_SYMM_MEM") == "1"
    if report.machine.dump.p2p_atomics is False and wanted:
        yield _finding(
            report,
            "R-ATOMICS",
            "Symmetric memory is asked for, but GPUs have no atomics on each other's memory.",
            {},
            "published: symmetric-memory barriers wedge without native atomics (vllm#47979)",
            "high",
            "Turn symmetric memory off; a push kernel with flags needs no atomics.",
        )


def _concerns(report: Report) -> bool:
    ranks = max((arm.facts.tp or 1 for arm in report.arms), default=1)
    several = ranks > 1 or (report.machine.num_gpus or 1) > 1
    return several and report.machine.fabric != "nvlink"


def _finding(
    report: Report, rule: str, title: str, numbers: dict[str, float], source: str, confidence: Confidence, next_: str
) -> Finding:
    return Finding(
        rule=rule,
        title=title,
        numbers=numbers,
        threshold=0.0,
        threshold_source=source,
        confidence=confidence,
        evidence=report.evidence_named(
            "acs_redirect_bridges", "iommu", "pcie_width", "pcie_gen", "p2p_read", "p2p_write", "p2p_atomics"
        ),
        next=next_,
    )
