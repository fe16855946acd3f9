"""NCCL's own estimate of a ring all-reduce inside one host, for fabrics and world sizes without a measured table.

time = base + 2 (n - 1) x hop + 2 (n - 1) / n x bytes / bandwidth, the faster of the LL and the Simple protocol. It
knows no contention, no root complex and no skew; published floors are 0.76 to 1.25 of it.
Source of the constants: NCCL src/graph/tuning.cc, as of 2026-06.
"""

from __future__ import annotations

from fastverify.diagnosis.reported import Fabric

_BASE_US = {"LL": 6.6, "Simple": 8.4}
_HOP_US = {
    "nvlink": {"LL": 0.6, "Simple": 3.4},
    "pcie": {"LL": 1.0, "Simple": 5.7},
    "network": {"LL": 2.7, "Simple": 14.0},
}
# Source: usable per-direction rate of one link, PCIe x16 by generation; 10 GB/s through host memory is NCCL's SHM path.
_GB_PER_S: dict[Fabric, float] = {
    "nvlink": 300.0,
    "nvlink-partial": 24.0,
    "pcie-gen5": 50.0,
    "pcie-gen4": 24.0,
    "pcie-gen3": 12.0,
    "pcie": 24.0,
    "network": 20.0,
    "host-memory": 10.0,
}
# The LL protocol sends a flag with every word of data.
_LL_BANDWIDTH_SHARE = 0.5


def nccl_ring_us(fabric: Fabric, world_size: int, num_bytes: float) -> float:
    """One all-reduce, in microseconds."""
    kind = fabric if fabric in ("nvlink", "network") else "pcie"
    bytes_per_us = _GB_PER_S[fabric] * 1e3

    def time_us(protocol: str, share: float) -> float:
        latency = _BASE_US[protocol] + 2 * (world_size - 1) * _HOP_US[kind][protocol]
        return latency + 2 * (world_size - 1) / world_size * num_bytes / (bytes_per_us * share)

    return min(time_us("LL", _LL_BANDWIDTH_SHARE), time_us("Simple", 1.0))
