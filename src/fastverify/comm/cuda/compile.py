"""CUDA C++ text to machine code with NVRTC, which needs neither nvcc nor a GPU, and a cache of the results.

It does not know what the kernels do. A cached file is found by NVRTC version, architecture and a hash of everything
that went in, and appears by rename, so that ranks may compile the same kernel at the same time.
Source: NVRTC documentation, https://docs.nvidia.com/cuda/nvrtc/.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from fastverify import env
from fastverify.errors import EnvironmentMissingError, FastverifyError
from fastverify.whole_file import write_whole

logger = logging.getLogger(__name__)

_ELF = b"\x7fELF"
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_HEADERS = ("call.cuh", "fused.cuh", "inbox.cuh", "parts.cuh", "ptx.cuh", "row_total.cuh", "units.cuh")
_OPTIONS = ("--std=c++17", "-default-device")


@dataclass(frozen=True)
class KernelSpec:
    """One source file of this package and the macros that shape it."""

    source: str
    defines: tuple[tuple[str, int], ...]

    def options(self, architecture: str) -> tuple[str, ...]:
        """The NVRTC command line."""
        macros = tuple(f"-D{name}={value}" for name, value in self.defines)
        return (f"--gpu-architecture={architecture}", *_OPTIONS, *macros)


def load_cubin(spec: KernelSpec, architecture: str, cache_folder: Path | None = None) -> bytes:
    """The machine code of `spec`, from the cache where it has been compiled before."""
    folder = cache_folder or env.cache_folder()
    path = folder / cache_name(spec, architecture, nvrtc_version())
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    if kept.startswith(_ELF):  # not so after a power cut that kept the name and lost the bytes
        return kept
    cubin = compile_cubin(spec, architecture)
    try:
        write_whole(path, cubin)
    except OSError as error:
        logger.warning("compiled kernels are not kept, since %s cannot be written: %s", folder, error)
    return cubin


def cache_name(spec: KernelSpec, architecture: str, version: tuple[int, int]) -> str:
    """File name that differs wherever the machine code may differ."""
    parts = [read_source(spec.source), *(read_source(name) for name in _HEADERS), *spec.options(architecture)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return f"nvrtc{version[0]}.{version[1]}-{architecture}-{digest}.cubin"


def read_source(name: str) -> str:
    """Text of one CUDA file of the package."""
    return (files(__package__) / "sources" / name).read_text()


def compile_cubin(spec: KernelSpec, architecture: str) -> bytes:
    """Compile now. Raises FastverifyError with the compiler's log where the source does not compile."""
    nvrtc = _import_nvrtc()
    headers = [read_source(name).encode() for name in _HEADERS]
    program = _checked(
        nvrtc.nvrtcCreateProgram(
            read_source(spec.source).encode(),
            spec.source.encode(),
            len(headers),
            headers,
            [name.encode() for name in _HEADERS],
        )
    )
    options = [option.encode() for option in spec.options(architecture)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status.value != 0:
        log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise FastverifyError(f"{spec.source} must compile for {architecture}, NVRTC said:\n{log.decode()}")
    cubin = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return bytes(cubin)


def _import_nvrtc() -> ModuleType:
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise EnvironmentMissingError(
            f"CUDA kernels are compiled with NVRTC through cuda-bindings, which cannot be imported ({error}). "
            f"Run `pip install cuda-bindings nvidia-cuda-nvrtc`."
        ) from error
    return nvrtc


def nvrtc_version() -> tuple[int, int]:
    """Version of the library that is loaded. cuda-bindings raises RuntimeError where it finds none."""
    nvrtc = _import_nvrtc()
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise EnvironmentMissingError(
            f"CUDA kernels need the NVRTC library: {error}. Run `pip install nvidia-cuda-nvrtc`."
        ) from error
    _checked((status,))
    return major, minor


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status.value != 0:
        raise FastverifyError(f"NVRTC failed: {status.name}.")
    return values[0] if values else None
