"""Versions that must fit together, which NCCL a server really loaded, and the settings that steer collectives.

A wheel's version is what is installed; a running server may have loaded another library, so the maps of running SGLang
and vLLM processes of this user are looked at. `python` names the server's interpreter where it is not this one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from fastverify.diagnosis.host_facts import format_cores
from fastverify.diagnosis.tool_output import ToolOutput

if TYPE_CHECKING:
    from fastverify.diagnosis.environment import Environment

# Distribution -> name among the packages.
PACKAGES = {
    "torch": "torch",
    "vllm": "vllm",
    "sglang": "sglang",
    "sgl-kernel": "sgl-kernel",
    "sglang-kernel": "sgl-kernel",
    "flashinfer-python": "flashinfer-python",
    "flashinfer-cubin": "flashinfer-cubin",
    "flashinfer-jit-cache": "flashinfer-jit-cache",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
    "mscclpp": "mscclpp",
    "deep-ep": "deep-ep",
    "triton": "triton",
    "transformers": "transformers",
    "fastverify": "fastverify",
}
PREFIXES = (
    *("NCCL_", "VLLM_", "SGLANG_", "FLASHINFER_", "MSCCLPP_", "TORCH_NCCL_", "NVSHMEM_", "CUDA_", "OMP_"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
NCCL_FILES = (Path("/etc/nccl.conf"), Path.home() / ".nccl.conf")
MAX_PROCESSES = 2000
_ASK_NCCL = """
import ctypes, sys
version = ctypes.c_int()
if ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version)) == 0:
    print(version.value)
"""
_LIST_PACKAGES = """
import json
from importlib import metadata
found = {}
for name in NAMES:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def read_software_facts(environment: Environment, run: Callable[..., ToolOutput], python: str | None) -> None:
    """Add versions, variables, NCCL's files and loaded library."""
    versions = _versions_of(environment, run, python) if python else _own_versions()
    environment.add("software.python", python or sys.version.split()[0])
    for distribution, version in versions.items():
        environment.add(f"hardware.packages.{PACKAGES[distribution]}", version)
    for server in ("vllm", "sglang"):
        if server in versions:
            environment.add(f"software.{server}", versions[server])
    _add_variables(environment)
    _add_nccl_files(environment)
    _add_loaded(environment, run)


def processes_with(word: str) -> dict[int, list[str]]:
    """Process ids of this user that have mapped a library with this word in its name, and its paths."""
    found: dict[int, list[str]] = {}
    for process in list(psutil.process_iter())[:MAX_PROCESSES]:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        paths = (line.rpartition(" ")[2] for line in maps.splitlines() if word in line)
        named = dict.fromkeys(path for path in paths if word in path.rpartition("/")[2])
        if named:
            found[process.pid] = list(named)
    return found


def _add_loaded(environment: Environment, run: Callable[..., ToolOutput]) -> None:
    """NCCL libraries that are in use, and the cores that each process with a GPU may run on."""
    libraries = dict.fromkeys(path for paths in processes_with("libnccl").values() for path in paths)
    environment.add("software.loaded_nccl", list(libraries) or None, "no process of this user has loaded NCCL")
    versions = {_nccl_version(run, library) for library in libraries} - {""}
    environment.add("software.loaded_nccl_version", sorted(versions) or None)
    ranks = []
    for pid in processes_with("libcuda."):
        try:
            cores = sorted(os.sched_getaffinity(pid))
        except (OSError, AttributeError):
            continue
        ranks.append(f"process {pid}: {format_cores(cores)}")
    environment.add("software.rank_affinity", ranks or None, "no process of this user has loaded CUDA")


def _nccl_version(run: Callable[..., ToolOutput], library: str) -> str:
    """What a library calls itself, asked in a process of its own; empty where it does not load."""
    output = run((sys.executable, "-I", "-c", _ASK_NCCL, library))
    found = (output.text or "").strip()
    if not found.isdecimal():
        return ""
    # Source: nccl.h, NCCL_VERSION: 2.28.9 is 22809; up to 2.8 a digit less.
    number = int(found)
    major, minor, patch = (number // 10000, number // 100 % 100, number % 100)
    return f"{major}.{minor}.{patch}" if number >= 10000 else found


def _own_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _versions_of(environment: Environment, run: Callable[..., ToolOutput], python: str) -> dict[str, str]:
    output = run((python, "-I", "-c", _LIST_PACKAGES.replace("NAMES", repr(list(PACKAGES)))))
    if output.text is None:
        environment.add("packages of the server", None, output.problem)
        return {}
    try:
        versions = json.loads(output.text)
    except ValueError:
        environment.add("packages of the server", None, f"{python} printed no package list")
        return {}
    return {name: str(version) for name, version in versions.items() if name in PACKAGES}


def _add_variables(environment: Environment) -> None:
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIXES) and not any(word in name for word in _SECRET):
            environment.add(f"launch.env.{name}", value)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > 0:
        environment.add("hardware.omp_num_threads", int(threads))


def _add_nccl_files(environment: Environment) -> None:
    for file in NCCL_FILES:
        try:
            text = file.read_text(errors="replace")[:10_000]
        except FileNotFoundError:
            continue
        except OSError as error:
            environment.add(str(file), None, str(error.strerror))
            continue
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        environment.add(f"software.{file.name.removeprefix('.')}", lines)
