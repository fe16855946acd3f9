"""Facts about this machine that decide how a number may be compared: CPU, cores we may use, memory, versions.

No torch and no GPU library: versions come from package metadata. What cannot be read is the text "unknown".
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import psutil

UNKNOWN = "unknown"
_PACKAGES = ("fastverify", "torch", "numpy")


@dataclass(frozen=True)
class Machine:
    """What a benchmark record says about where it ran."""

    cpu: str
    architecture: str
    num_usable_cores: int
    memory_bytes: int
    num_numa_nodes: int
    system: str
    python: str
    versions: dict[str, str]

    def to_dict(self) -> dict[str, object]:
        """Plain values for a JSON record."""
        return asdict(self)


def read_machine() -> Machine:
    """Read the facts now; takes about a millisecond."""
    return Machine(
        cpu=_cpu_name(),
        architecture=platform.machine(),
        num_usable_cores=num_usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        num_numa_nodes=_num_numa_nodes(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: package_version(name) for name in _PACKAGES},
    )


def num_usable_cores() -> int:
    """Cores that this process may run on, which a container or taskset can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(name: str) -> str:
    """Installed version of a distribution, or "unknown"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or UNKNOWN


def _num_numa_nodes() -> int:
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def read_gpu_facts() -> dict[str, object]:
    """What a record says about NVIDIA GPUs: names, driver, PCIe, topology. Empty without nvidia-smi."""
    rows = _nvidia_smi(
        "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm,memory.total",
        "--format=csv,noheader",
    ).splitlines()
    cells = [[cell.strip() for cell in row.split(",")] for row in rows if row.count(",") == 5]
    if not cells:
        return {}
    return {
        "names": [row[0] for row in cells],
        "driver": cells[0][1],
        "pcie": [f"Gen{row[2]} x{row[3]}" for row in cells],
        "max_sm_clock": [row[4] for row in cells],
        "memory": [row[5] for row in cells],
        "topology": _nvidia_smi("topo", "-m").splitlines(),
    }


def _nvidia_smi(*arguments: str) -> str:
    try:
        answer = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
