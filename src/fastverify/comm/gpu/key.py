"""What a measured table depends on: GPUs and the links between them, driver, libraries, environment, our own kernels.

Cheap to read: nothing is timed. The links are what the driver says of each pair (access, its rank of the link, atomics,
which tell NVLink from PCIe) and where each GPU hangs in the PCI tree. It may change more often than the times do, never
less: two keys for one truth cost a measurement, one key for two would cost speed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.cuda.devices import visible_gpus
from fastverify.comm.cuda.driver_calls import call_driver, open_driver
from fastverify.comm.group import Group
from fastverify.errors import FastverifyError
from fastverify.hardware import UNKNOWN, package_version

# Libraries whose collectives are candidates, by distribution.
_PACKAGES = ("fastverify", "torch", "flashinfer-python", "vllm", "mscclpp", "cuda-bindings", "nvidia-cuda-nvrtc")
# NCCL reads these, except those that only change what it says.
_VARIABLE_PREFIXES = ("NCCL_", "TORCH_SYMM")
_SILENT_VARIABLES = ("NCCL_DEBUG",)
_LINK_ATTRIBUTES = ("ACCESS_SUPPORTED", "PERFORMANCE_RANK", "NATIVE_ATOMIC_SUPPORTED")
_ADDRESS_CHARS = 32


def read_key(group: Group) -> dict[str, Any]:
    """The same on every rank; every rank calls it together."""
    own = json.dumps({**read_gpu(group), **read_software()}).encode()
    ranks = [json.loads(text) for text in exchange(group, own)]
    return {"world_size": group.world_size, "ranks": ranks}


def read_software() -> dict[str, Any]:
    """Versions, environment and kernel sources of this process."""
    return {
        "versions": {name: package_version(name) for name in _PACKAGES},
        "torch": torch.__version__,
        "cuda": torch.version.cuda or UNKNOWN,
        "nccl": _nccl_version(),
        "driver": read_driver_version(),
        "kernels": hash_sources(),
        "environment": read_environment(),
        "nccl_settings": read_setting_files(),
    }


def read_environment() -> dict[str, str]:
    """Variables of this process that change what a collective costs."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLE_PREFIXES) and not name.startswith(_SILENT_VARIABLES)
    }


def read_setting_files(paths: Sequence[Path] | None = None) -> dict[str, str]:
    """A hash of each file from which NCCL takes variables that the environment does not set."""
    # Not expanduser(), which raises where the user has no home folder.
    paths = paths or [Path("/etc/nccl.conf"), Path(os.path.expanduser("~/.nccl.conf"))]  # noqa: PTH111
    return {str(path): _hash_file(path) for path in paths if path.is_file()}


def read_driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of the kernel driver, or "unknown"."""
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text())
    except OSError:
        return UNKNOWN
    return found.group() if found else UNKNOWN


def hash_sources() -> str:
    """Of every file that makes our kernels and their launches what they are."""
    folder = files("fastverify.comm.cuda")
    digest = hashlib.sha256()
    for path in sorted(_list_files(folder), key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def read_gpu(group: Group) -> dict[str, Any]:
    """This rank's GPU, its place in the PCI tree, and its link to each other rank's."""
    if group.device.type != "cuda":
        return {"name": group.device.type}
    properties = torch.cuda.get_device_properties(group.device)
    return {
        "name": properties.name,
        "uuid": str(properties.uuid),
        "multiprocessors": properties.multi_processor_count,
        "pci": _read_pci_path(group.device),
        "links": _read_links(group),
    }


def _hash_file(path: Path) -> str:
    """One that this user must not read is none that NCCL reads."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return UNKNOWN


def _list_files(folder: Traversable) -> list[Traversable]:
    found = []
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            found += _list_files(path)
        elif path.name.endswith((".py", ".cu", ".cuh")):
            found.append(path)
    return found


def _nccl_version() -> list[int]:
    try:
        return list(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):  # a torch without NCCL
        return []


def _read_pci_path(device: torch.device) -> str:
    """Every bridge from the root to the GPU, as the kernel numbers them."""
    try:
        address = call_driver("cuDeviceGetPCIBusId", _ADDRESS_CHARS, call_driver("cuDeviceGet", device.index))
        name = address.partition(b"\0")[0].decode().lower()
        return str((Path("/sys/bus/pci/devices") / name).resolve())
    except FastverifyError:
        return UNKNOWN


def _read_links(group: Group) -> dict[str, list[int] | str]:
    """By rank; a GPU that this process does not see has no link that it could read."""
    numbers = visible_gpus()
    return {
        str(peer): _read_link(group.device.index, numbers[gpu]) if gpu in numbers else UNKNOWN
        for peer, gpu in enumerate(group.gpus)
        if peer != group.rank
    }


def _read_link(own: int, peer: int) -> list[int] | str:
    if own == peer:
        return "same"
    try:
        kinds = open_driver().CUdevice_P2PAttribute
        ends = call_driver("cuDeviceGet", own), call_driver("cuDeviceGet", peer)
        return [
            int(call_driver("cuDeviceGetP2PAttribute", getattr(kinds, f"CU_DEVICE_P2P_ATTRIBUTE_{name}"), *ends))
            for name in _LINK_ATTRIBUTES
        ]
    except FastverifyError:
        return UNKNOWN
