"""GPUs and the PCIe fabric between them: nvidia-smi's tables and properties, NUMA node per GPU, ACS bits by lspci.

A link that idles sleeps at a low speed, so speed and width count only while the GPUs work: `hardware.link_under_load`
says whether they did. nvidia-smi refuses a whole query for one name that it does not know, so then each is asked alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fastverify.diagnosis.acs import count_redirecting_bridges
from fastverify.diagnosis.tool_output import ToolOutput

if TYPE_CHECKING:
    from fastverify.diagnosis.environment import Environment

# Property of `nvidia-smi --query-gpu` -> its name among the facts.
PROPERTIES = {
    "name": "host.gpu_names",
    "pci.bus_id": "host.gpu_bus_ids",
    "driver_version": "hardware.driver_version",
    "compute_cap": "hardware.compute_capability",
    "pcie.link.gen.current": "hardware.pcie_gen",
    "pcie.link.gen.max": "hardware.pcie_max_gen",
    "pcie.link.width.current": "hardware.pcie_width",
    "pcie.link.width.max": "hardware.pcie_max_width",
    "utilization.gpu": "hardware.gpu_utilization",
    "power.draw": "host.gpu_power_w",
    "power.limit": "host.gpu_power_limits_w",
    "power.default_limit": "host.gpu_default_power_limits_w",
    "clocks_throttle_reasons.active": "host.gpu_throttle_reasons",
    "clocks.current.sm": "host.gpu_clocks_mhz",
    "persistence_mode": "host.gpu_persistence",
    "mig.mode.current": "host.gpu_mig",
}
# Facts of reported.py are of the worst GPU, others a list with an entry per GPU.
_WORST = ("hardware.pcie_gen", "hardware.pcie_max_gen", "hardware.pcie_width", "hardware.pcie_max_width")
_SAME = ("hardware.driver_version", "hardware.compute_capability")
TABLES = (
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "topo", "-p2p", "r"),
    ("nvidia-smi", "topo", "-p2p", "w"),
    ("nvidia-smi", "topo", "-p2p", "a"),
)
# Arbitrary: a GPU that serves is busy all the time, an idle one shows 0 or 1 percent.
MIN_BUSY_SHARE = 0.05
_LSPCI_WORDS = ("ACSCtl:", "LnkSta:", "LnkCap:", "access denied")
PCI_DEVICES = Path("/sys/bus/pci/devices")


def read_gpu_facts(environment: Environment, run: Callable[..., ToolOutput]) -> None:
    """Add everything about GPUs and their links."""
    columns = _query(environment, run)
    for name, values in columns.items():
        _add_column(environment, name, values)
    if names := columns.get("host.gpu_names"):
        environment.add("hardware.gpu", names[0])
        environment.add("hardware.num_gpus", len(names))
        _add_load(environment, columns)
        _add_numa_nodes(environment, columns.get("host.gpu_bus_ids", []))
        for arguments in TABLES:
            environment.add_tool(run(arguments))
    lspci = run(("lspci", "-vvv"))
    environment.add_tool(ToolOutput(lspci.command, relevant_lspci(lspci.text), lspci.problem))
    if lspci.text is None or "ACSCtl:" not in lspci.text:
        environment.add("hardware.acs_redirect_bridges", *count_redirecting_bridges(PCI_DEVICES))


def relevant_lspci(text: str | None) -> str | None:
    """Device lines, links and ACS bits of a listing; None stays None."""
    if text is None:
        return None
    kept = [line for line in text.splitlines() if line[:1].isalnum() or any(word in line for word in _LSPCI_WORDS)]
    return "\n".join(kept)


def _query(environment: Environment, run: Callable[..., ToolOutput]) -> dict[str, list[str]]:
    output = _ask(run, list(PROPERTIES))
    if output.text is None and "exit code" not in output.problem:
        environment.add("GPUs", None, output.problem)
        return {}
    columns = _columns(list(PROPERTIES.values()), output.text or "")
    if columns:
        return columns
    for name, fact in PROPERTIES.items():
        single = _ask(run, [name])
        found = _columns([fact], single.text or "")
        columns |= found
        if not found:
            environment.add(fact, None, single.problem or "nvidia-smi gave no value")
    return columns


def _ask(run: Callable[..., ToolOutput], names: list[str]) -> ToolOutput:
    return run(("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"))


def _columns(names: list[str], text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    if not rows or any(len(row) != len(names) for row in rows):
        return {}
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _add_column(environment: Environment, name: str, values: list[str]) -> None:
    if all(value.startswith("[") or value in ("", "N/A") for value in values):
        environment.add(name, None, "the driver does not tell for this GPU")
        return
    numbers = [float(value) for value in values if _is_number(value)]
    if name in _WORST and numbers:
        environment.add(name, int(min(numbers)))
    elif name in _SAME:
        environment.add(name, min(values))
    elif name == "hardware.gpu_utilization" and len(numbers) == len(values):
        environment.add(name, [share / 100 for share in numbers])
    elif len(numbers) == len(values):
        environment.add(name, numbers)
    else:
        environment.add(name, values)


def _add_load(environment: Environment, columns: dict[str, list[str]]) -> None:
    busy = [float(value) / 100 for value in columns.get("hardware.gpu_utilization", []) if _is_number(value)]
    if busy:
        under_load = min(busy) >= MIN_BUSY_SHARE
        environment.add("hardware.link_under_load", under_load)
        if not under_load:
            environment.unread["link speed and width under load"] = (
                "the GPUs are idle, and idle links go to sleep: run this again while the server answers requests"
            )
    pairs = zip(columns.get("host.gpu_power_w", []), columns.get("host.gpu_power_limits_w", []), strict=False)
    shares = [float(draw) / float(limit) for draw, limit in pairs if _is_number(draw) and _is_number(limit)]
    if shares:
        environment.add("hardware.gpu_power_share", [round(share, 3) for share in shares])


def _add_numa_nodes(environment: Environment, bus_ids: list[str]) -> None:
    """NUMA node of each GPU, from the kernel."""
    nodes = []
    for bus_id in bus_ids:
        # nvidia-smi writes an eight-digit domain, the kernel a four-digit one.
        file = PCI_DEVICES / bus_id.lower()[-12:] / "numa_node"
        try:
            nodes.append(int(file.read_text()))
        except (OSError, ValueError):
            environment.add("host.gpu_numa_nodes", None, "the kernel does not show these PCI devices here")
            return
    if min(nodes, default=0) < 0:
        # Source: kernel documentation, ABI/testing/sysfs-bus-pci: -1 where the firmware names no node.
        environment.add("host.gpu_numa_nodes", None, "the firmware names no node for the GPUs, as in virtual machines")
        return
    environment.add("host.gpu_numa_nodes", nodes)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
