"""State of GPU links as the driver's tool and the kernel tell it: PCIe generation and width, NVLinks, root port.

A link that idles sleeps at a low speed, so the caller asks once while idle and once under load. Nothing is changed.
What is not told is None, 0 or an empty text; a tool that is missing or hangs is no error.
Source: nvidia-smi --help-query-gpu, nvidia-smi nvlink --help; sysfs-bus-pci.
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastverify.comm.cuda.link_report import PcieState

# Arbitrary: the tool answers in a second on eight GPUs; a wedged driver never does.
_TIMEOUT_S = 20.0
_PCIE_FIELDS = (
    "pci.bus_id",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "pcie.link.gen.max",
    "pcie.link.width.max",
)
_ACTIVE_LINK = re.compile(r"^\s*Link \d+:\s*([\d.]+) GB/s", re.MULTILINE)
Runner = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class PcieReading:
    """One GPU's link now, and the most that GPU and slot can do together."""

    now: PcieState | None
    best: PcieState | None


def run_tool(arguments: Sequence[str]) -> str:
    """What a tool printed, or an empty text."""
    try:
        done = subprocess.run(
            list(arguments),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_pcie(run: Runner = run_tool) -> dict[str, PcieReading]:
    """By bus address as `short_address` writes it."""
    text = run(("nvidia-smi", f"--query-gpu={','.join(_PCIE_FIELDS)}", "--format=csv,noheader,nounits"))
    readings = {}
    for row in csv.reader(io.StringIO(text)):
        cells = [cell.strip() for cell in row]
        if len(cells) == len(_PCIE_FIELDS):
            readings[short_address(cells[0])] = PcieReading(_state(cells[1], cells[2]), _state(cells[3], cells[4]))
    return readings


def read_nvlinks(run: Runner = run_tool) -> dict[str, tuple[int, float]]:
    """By UUID: active NVLinks of the GPU, and what they carry together in one direction, in GB/s."""
    found = {}
    text = run(("nvidia-smi", "nvlink", "--status"))
    for block in re.split(r"^(?=GPU \d+:)", text, flags=re.MULTILINE):
        if uuid := re.search(r"\(UUID: (GPU-[0-9a-f-]+)\)", block):
            rates = [rate for rate in map(float, _ACTIVE_LINK.findall(block)) if rate > 0]
            found[uuid[1]] = (len(rates), round(sum(rates), 1))
    return found


def find_root_port(bus_address: str, root: Path = Path("/sys/bus/pci/devices")) -> str:
    """The port below the root complex that leads to a device: GPUs with the same one share a switch.

    A virtual machine shows its own tree, in which every GPU may have a port of its own.
    """
    try:
        parts = (root / bus_address.lower()).resolve(strict=True).parts
    except OSError:
        return ""
    for place, part in enumerate(parts):
        if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part):
            return "/".join(parts[place : place + 2])
    return ""


def short_address(bus_address: str) -> str:
    """nvidia-smi writes an eight-digit domain, everybody else a four-digit one."""
    domain, _, rest = bus_address.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _state(generation: str, width: str) -> PcieState | None:
    if not (generation.isdecimal() and width.isdecimal()):
        return None
    return PcieState(int(generation), int(width))
