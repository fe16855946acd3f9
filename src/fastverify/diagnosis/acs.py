"""ACS control bits of PCIe bridges, from the configuration space in /sys, for machines without lspci.

Only root may read beyond the first 64 bytes; then a bridge with no ACS capability redirects nothing.
Source: PCI Express Base Specification 5.0, sections 7.6.3 (extended capabilities) and 7.7.8 (access control services).
"""

from __future__ import annotations

import struct
from pathlib import Path

EXTENDED_START = 0x100
CONFIG_BYTES = 4096
ACS_CAPABILITY = 0x000D
ACS_CONTROL_OFFSET = 6
REQUEST_REDIRECT, COMPLETION_REDIRECT = 0x04, 0x08
_BRIDGE_CLASS = "0x0604"
# A list in a space of 4096 bytes, each entry at least 4 long; a longer walk is a loop in damaged data.
_MAX_CAPABILITIES = (CONFIG_BYTES - EXTENDED_START) // 4


def count_redirecting_bridges(devices: Path) -> tuple[int | None, str]:
    """Bridges that redirect peer traffic; None with the reason where the bits cannot be read."""
    bridges = [device for device in sorted(devices.glob("*")) if _is_bridge(device)]
    if not bridges:
        return None, "no PCIe bridge is visible here"
    count = 0
    for bridge in bridges:
        try:
            config = (bridge / "config").read_bytes()
        except OSError as error:
            return None, f"{bridge.name}: {error.strerror}"
        if len(config) < EXTENDED_START:
            return None, "only root may read the configuration space of bridges"
        control = acs_control(config)
        count += bool(control is not None and control & (REQUEST_REDIRECT | COMPLETION_REDIRECT))
    return count, ""


def acs_control(config: bytes) -> int | None:
    """The ACS control word of a device's configuration space; None without that capability."""
    offset = EXTENDED_START
    for _ in range(_MAX_CAPABILITIES):
        if offset < EXTENDED_START or offset + ACS_CONTROL_OFFSET + 2 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + ACS_CONTROL_OFFSET)
            return int(control)
        offset = header >> 20
    return None


def _is_bridge(device: Path) -> bool:
    try:
        return (device / "class").read_text().startswith(_BRIDGE_CLASS)
    except OSError:
        return False
