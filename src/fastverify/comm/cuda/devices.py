"""Which GPU each rank uses, and whether the GPUs reach each other's memory.

A GPU is known by its bus address and UUID, since CUDA_VISIBLE_DEVICES may number the same GPUs differently in each
process. The driver's word that memory can be reached is no proof that data arrives whole: probe.py looks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fastverify.comm.cuda.driver_calls import call_driver

UNKNOWN_NODE = -1
_BUS_ADDRESS_CHARS = 32


@dataclass(frozen=True)
class DeviceIdentity:
    """One rank's GPU. `numa_node` is UNKNOWN_NODE where the machine has one node or does not say."""

    name: str
    uuid: str
    bus_address: str
    numa_node: int

    def to_bytes(self) -> bytes:
        """For the other ranks."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DeviceIdentity:
        """What `to_bytes` made."""
        return cls(**json.loads(data))


def identify(device: torch.device) -> DeviceIdentity:
    """The GPU behind a device of this process. CUDA must have started."""
    properties = torch.cuda.get_device_properties(device)
    handle = call_driver("cuDeviceGet", device.index)
    address = call_driver("cuDeviceGetPCIBusId", _BUS_ADDRESS_CHARS, handle)
    bus_address = address.partition(b"\0")[0].decode().lower()
    return DeviceIdentity(properties.name, str(properties.uuid), bus_address, read_numa_node(bus_address))


def read_numa_node(bus_address: str, root: Path = Path("/sys/bus/pci/devices")) -> int:
    """The NUMA node that a PCI device hangs on, or UNKNOWN_NODE."""
    try:
        return int((root / bus_address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return UNKNOWN_NODE


def find_unreachable(rank: int, identities: Sequence[DeviceIdentity], visible: Sequence[str]) -> list[int]:
    """Ranks whose GPU this rank's GPU cannot reach, as far as this process sees them.

    `visible`: the UUIDs of this process's devices, by number. A GPU that it does not see gets the benefit of the doubt:
    mapping its memory will tell.
    """
    own = identities[rank].uuid
    return [
        peer
        for peer, identity in enumerate(identities)
        if own in visible
        and identity.uuid in visible
        and identity.uuid != own
        and not torch.cuda.can_device_access_peer(visible.index(own), visible.index(identity.uuid))
    ]


def visible_uuids() -> list[str]:
    """UUIDs of this process's devices, by number."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def largest_share(identities: Sequence[DeviceIdentity]) -> int:
    """The most ranks that one GPU serves."""
    uuids = [identity.uuid for identity in identities]
    return max(uuids.count(uuid) for uuid in uuids)
