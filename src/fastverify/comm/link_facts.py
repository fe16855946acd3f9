"""What the latency model needs to know of a machine's links: as `bench links` measured it, or as known before that.

Numbers of a machine that was not measured are somebody's, each with its source; a measured report replaces them one by
one. Plain values, no GPU, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastverify.comm.cuda.link_report import LinkReport, LinkRow, Pattern, PcieState, Quantity, islands

_KB = 1024


@dataclass(frozen=True)
class LinkFacts:
    """Bandwidths are of one GPU while all GPUs send, in 1e9 bytes/s; 0 is what nobody knows.

    `launch_us`: an empty kernel in a graph. `push_start_us`: what a push takes beside everything here, once per call.
    `work_us`: load, add and store of a small message, per round. `flag_us`: from a store to the load that sees it.
    `host_fence_us`: what a flag costs above data that carries its own readiness.
    `island_size`: GPUs behind one switch or root complex, 0 for all. `cross_gb_per_s`: everything that one island sends
    to the others together. `batch_bytes`: what a kernel's blocks move at a time.
    """

    # Measured: empty kernels of all_reduce_gpu_virtual_h200_2026-11.json; 0.64 to 0.93 in the other runs of that day.
    launch_us: float = 0.65
    # Measured: all_reduce_gpu_h200x2_2026-11.json, push of 4 to 224 KB less launch, work and the flag of `bench links`;
    # on one GPU, with a flag of 0.22, the same is missing. Through host memory it is not. Not explained.
    push_start_us: float = 0.6
    # Measured: all_reduce_gpu_settings_h200x2_2026-11.json, push two-shot less push of 8 KB: 1.17, of which 0.7 a flag.
    work_us: float = 0.45
    # Published: SGLang's kernel on H100 at 4 KB takes 2.5, 2.7, 3.5 us with 2, 4, 8 ranks.
    per_peer_us: float = 0.1
    # Measured: twice what two ranks that share one H200 reach, 57 KB to 1 MB.
    handle_gb_per_s: float = 930.0
    # Measured: all_reduce_gpu_rows7168_h200x2_2026-11.json, fused less plain, 1 to 32 rows: 0.65 to 1.6.
    norm_us: float = 1.0
    flag_us: float = 0.7
    peer_gb_per_s: float = 0.0
    island_size: int = 0
    cross_flag_us: float = 0.0
    cross_gb_per_s: float = 0.0
    host_flag_us: float = 0.0
    host_write_gb_per_s: float = 0.0
    host_read_gb_per_s: float = 0.0
    host_fence_us: float = 0.0
    host_total_gb_per_s: float = 0.0
    batch_bytes: int = 2048 * _KB


# Measured: links_h200x2_2026-11.txt, two NVIDIA H200; stores of both at once.
H200_NVLINK = LinkFacts(flag_us=0.70, peer_gb_per_s=363.0)
# Measured: the same report, each GPU on its own PCIe Gen5 x16, one direction at a time: a call writes, then reads.
# Both ways at once it is 38 and 36 GB/s. 300 GB/s of all ranks together: an assumption; two GPUs reach 105 one way.
H200_HOST = LinkFacts(
    host_flag_us=1.67,
    host_write_gb_per_s=52.1,
    host_read_gb_per_s=50.5,
    host_fence_us=2.21,
    host_total_gb_per_s=300.0,
)
# Measured: the same report, a flag in a GPU's own memory.
OWN_MEMORY_FLAG_US = 0.22
# Published on Gen5 x16: one-shot tables of 4 GPUs imply 35 of 63 GB/s for stores of one GPU while all send, those of 8
# GPUs 57 for an uplink (rtx6kpro), one of 2 GPUs 48 (flashinfer). benchmarks/fit_latency_model.py tries the same shares
# on Gen3 and Gen4.
_SHARE_OF_TWO, _SHARE_OF_MANY, _SHARE_OF_UPLINK = 0.77, 0.556, 0.905
# Published (rtx6kpro): behind one switch 0.63 to 0.73, across root complexes 1.06 to 1.08.
_SWITCH_FLAG_US, _CROSS_FLAG_US = 0.7, 1.07
# Published (rtx6kpro collapse report): all flows of an island together.
COLLAPSED_GB_PER_S = 2.7


def pcie_facts(generation: int, world_size: int, *, island_size: int = 0, collapses: bool = False) -> LinkFacts:
    """Peers over PCIe x16 that nobody has measured; islands have one uplink each."""
    bound = PcieState(generation, 16).bound_gb_per_s
    facts = LinkFacts(
        flag_us=_SWITCH_FLAG_US, peer_gb_per_s=bound * (_SHARE_OF_TWO if world_size == 2 else _SHARE_OF_MANY)
    )
    if not island_size:
        return facts
    uplink = COLLAPSED_GB_PER_S if collapses else bound * _SHARE_OF_UPLINK
    return replace(facts, island_size=island_size, cross_flag_us=_CROSS_FLAG_US, cross_gb_per_s=uplink)


def facts_from_report(report: LinkReport, otherwise: LinkFacts | None = None) -> LinkFacts:
    """Facts of a measured machine; what the report lacks stays as in `otherwise`."""
    facts = otherwise or LinkFacts()
    num_gpus = len(report.gpus)
    measured: dict[str, Any] = {
        "flag_us": report.typical(Quantity.FLAG),
        "peer_gb_per_s": _share(report, Quantity.STORE, "all gpus", num_gpus),
        "host_flag_us": report.typical(Quantity.FLAG, target="host"),
        "host_fence_us": report.typical(Quantity.RELEASE_FLAG, target="host"),
        "host_write_gb_per_s": _share(report, Quantity.STORE, "host", num_gpus),
        "host_read_gb_per_s": _share(report, Quantity.LOAD, "host", num_gpus),
    }
    facts = replace(facts, **{name: value for name, value in measured.items() if value is not None})
    if facts.host_write_gb_per_s and measured["host_write_gb_per_s"] is not None:
        # Rates under common load hold what all of them share.
        facts = replace(facts, host_total_gb_per_s=num_gpus * (facts.host_write_gb_per_s + facts.host_read_gb_per_s))
    return facts if report.uses_nvlink else _with_islands(facts, report)


def _with_islands(facts: LinkFacts, report: LinkReport) -> LinkFacts:
    groups = islands(report.gpus)
    sizes = {len(group) for group in groups}
    crossing = _share(report, Quantity.STORE, "gpus behind other ports", len(groups))
    # A GPU per port is no island: what all send at once is measured as such.
    if len(groups) < 2 or len(sizes) != 1 or sizes == {1} or crossing is None:
        return facts
    island_of = {index: place for place, group in enumerate(groups) for index in group}
    flags = report.find(Quantity.FLAG)
    inside = [row for row in flags if island_of[row.source] == island_of[_target_gpu(row)]]
    across = [row for row in flags if row not in inside]
    return replace(
        facts,
        island_size=sizes.pop(),
        cross_gb_per_s=crossing,
        flag_us=_median_us(inside) or facts.flag_us,
        cross_flag_us=_median_us(across) or facts.flag_us,
    )


def _share(report: LinkReport, quantity: Quantity, target: str, parts: int) -> float | None:
    """One part of what all GPUs reached together; the slowest NUMA node where there are several."""
    values = [row.value for row in report.find(quantity, Pattern.ALL_AT_ONCE, target) if row.value is not None]
    return min(values) / parts if values else None


def _target_gpu(row: LinkRow) -> int:
    return int(row.target.removeprefix("gpu "))


def _median_us(rows: list[LinkRow]) -> float | None:
    values = sorted(row.value for row in rows if row.value is not None)
    return values[len(values) // 2] if values else None
