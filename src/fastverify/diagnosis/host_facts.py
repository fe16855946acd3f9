"""The host around the GPUs, from /proc and /sys: IOMMU, NUMA, cores and governor, container, shared memory, limits.

Reads files only. Inside a container some of them show the host, some the container; the container is named.
"""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from fastverify.diagnosis.readers.pci import iommu_mode
from fastverify.hardware import num_usable_cores, read_machine

if TYPE_CHECKING:
    from fastverify.diagnosis.environment import Environment

IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")
DRIVER = Path("/proc/driver/nvidia")
# Source: kernel documentation, ABI/testing/sysfs-kernel-iommu_groups.
_GROUP_TYPES = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}


def read_host_facts(environment: Environment) -> None:
    """Add everything about the host."""
    machine = read_machine()
    environment.add("host.cpu", machine.cpu)
    environment.add("host.system", machine.system)
    environment.add("host.memory_bytes", machine.memory_bytes)
    environment.add("hardware.num_numa_nodes", machine.num_numa_nodes)
    environment.add("hardware.num_cores", num_usable_cores())
    environment.add("host.affinity", _affinity(), "this system has no affinity")
    _add_iommu(environment)
    governor = _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    environment.add("host.cpu_governor", governor, "the kernel shows no frequency governor here")
    environment.add("host.cpu_sockets", _num_sockets(), "/proc/cpuinfo names no sockets")
    environment.add("hardware.container", _container())
    environment.add("host.hypervisor", "hypervisor" in (_read(Path("/proc/cpuinfo")) or ""))
    _add_driver(environment)
    _add_limits(environment)


def iommu_of_groups(types: list[str], *, has_folder: bool) -> str | None:
    """Mode by the types of the kernel's IOMMU groups; no group at all means that no IOMMU is in use."""
    if not types:
        return "off" if has_folder else None
    modes = {_GROUP_TYPES.get(kind.strip()) for kind in types}
    return "translated" if "translated" in modes else "passthrough" if "passthrough" in modes else None


def _add_iommu(environment: Environment) -> None:
    command_line = _read(Path("/proc/cmdline")) or ""
    words = [word for word in command_line.split() if "iommu" in word or word.startswith(("pci=", "pcie_acs"))]
    environment.add("host.kernel_iommu_words", words)
    types = [text for file in sorted(IOMMU_GROUPS.glob("*/type"))[:4096] if (text := _read(file)) is not None]
    mode = iommu_of_groups(types, has_folder=IOMMU_GROUPS.is_dir()) or iommu_mode(command_line.split())
    environment.add("hardware.iommu", mode, "neither the kernel's groups nor its command line tell")


def _add_driver(environment: Environment) -> None:
    """Which kernel module drives the GPUs, and the registry words it was loaded with: they can force peer access."""
    version = _read(DRIVER / "version")
    if version is None:
        return
    flavour = "open" if "Open Kernel Module" in version.partition("\n")[0] else "proprietary"
    environment.add("hardware.driver_flavour", flavour)
    parameters = (_read(DRIVER / "params") or "").splitlines()
    words = [line for line in parameters if line.startswith(("RegistryDwords", "EnablePCIERelaxedOrderingMode"))]
    environment.add("host.driver_parameters", words)


def _add_limits(environment: Environment) -> None:
    for name, kind in (("locked memory", resource.RLIMIT_MEMLOCK), ("open files", resource.RLIMIT_NOFILE)):
        soft = resource.getrlimit(kind)[0]
        environment.add(f"host.limit_{name.replace(' ', '_')}", "unlimited" if soft == resource.RLIM_INFINITY else soft)
    try:
        environment.add("host.shared_memory_bytes", shutil.disk_usage("/dev/shm").total)
    except OSError as error:
        environment.add("host.shared_memory_bytes", None, str(error.strerror))


def format_cores(cores: list[int]) -> str:
    """Ascending core numbers as ranges: `0-3,8`."""
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _affinity() -> str | None:
    """Cores of this process: a server started from here gets the same."""
    return format_cores(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None


def _num_sockets() -> int | None:
    text = _read(Path("/proc/cpuinfo")) or ""
    return len({line for line in text.splitlines() if line.startswith("physical id")}) or None


def _container() -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    groups = _read(Path("/proc/1/cgroup")) or ""
    return next((name for name in ("kubepods", "docker", "lxc", "containerd") if name in groups), "none seen")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
