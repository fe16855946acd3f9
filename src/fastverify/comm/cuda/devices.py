"""Whether the GPUs of a group reach each other's memory, and where in the machine they are.

GPUs are known by UUID, since CUDA_VISIBLE_DEVICES may number the same GPUs differently in each process. The driver's
word that memory can be reached is no proof that data arrives whole: probe.py looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from fastverify.comm.cuda.driver_calls import call_driver

UNKNOWN_NODE = -1
_BUS_ADDRESS_CHARS = 32


def find_unreachable(rank: int, gpus: Sequence[str]) -> list[int]:
    """Ranks whose GPU this rank's GPU cannot reach, as far as this process sees them.

    `gpus`: UUIDs by rank. A GPU that this process does not see gets the benefit of the doubt: mapping its memory tells.
    """
    numbers = visible_gpus()
    own = numbers.get(gpus[rank])
    others = [(peer, numbers[gpu]) for peer, gpu in enumerate(gpus) if gpu in numbers and gpu != gpus[rank]]
    return [peer for peer, number in others if own is not None and not torch.cuda.can_device_access_peer(own, number)]


def visible_gpus() -> dict[str, int]:
    """This process's numbers, by UUID."""
    return {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}


def largest_share(gpus: Sequence[str]) -> int:
    """The most ranks that one GPU serves."""
    return max(gpus.count(gpu) for gpu in gpus)


def find_numa_node(device: torch.device) -> int:
    """The NUMA node of a GPU of this process, or UNKNOWN_NODE. CUDA must have started."""
    handle = call_driver("cuDeviceGet", device.index)
    address = call_driver("cuDeviceGetPCIBusId", _BUS_ADDRESS_CHARS, handle)
    return read_numa_node(address.partition(b"\0")[0].decode())


def read_numa_node(bus_address: str, root: Path = Path("/sys/bus/pci/devices")) -> int:
    """The NUMA node that a PCI device hangs on, or UNKNOWN_NODE where the machine has one node or does not say."""
    try:
        return int((root / bus_address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return UNKNOWN_NODE
