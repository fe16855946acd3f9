"""The few calls of the CUDA driver that kernels need: load machine code, launch on a stream.

It does not know what the kernels do. torch owns the context, the memory and the streams; modules stay loaded as long as
the process runs, because a captured graph may hold their functions.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from fastverify.errors import EnvironmentMissingError, FastverifyError


class Kernel:
    """One loaded function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def launch(
        self, num_blocks: int, num_threads: int, stream: int, call: ctypes.Structure, *, overlap: bool = False
    ) -> None:
        """Start it with `call` as its one argument, which the driver copies before this returns.

        `overlap`: it may take its place while the kernel before it on the stream still runs (SM90; the kernel waits).
        """
        if overlap:
            self._launch_overlapped(num_blocks, num_threads, stream, call)
            return
        driver = _import_driver()
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        _checked(
            driver.cuLaunchKernel(
                self._function,
                *(num_blocks, 1, 1),
                *(num_threads, 1, 1),
                0,
                driver.CUstream(stream),
                ctypes.addressof(arguments),
                0,
            )
        )

    def blocks_per_multiprocessor(self, num_threads: int) -> int:
        """How many of its blocks are resident on one multiprocessor at a time."""
        driver = _import_driver()
        count = _checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, num_threads, 0))
        return int(count)

    def _launch_overlapped(self, num_blocks: int, num_threads: int, stream: int, call: ctypes.Structure) -> None:
        driver = _import_driver()
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = num_blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = num_threads, 1, 1
        config.sharedMemBytes = 0
        config.hStream = driver.CUstream(stream)
        config.attrs, config.numAttrs = [_overlap_attribute()], 1
        _checked(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(arguments), 0))


@cache
def _overlap_attribute() -> Any:
    """Programmatic dependent launch, by its name in the CUDA driver documentation."""
    driver = _import_driver()
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value = value
    return attribute


def load_kernels(cubin: bytes, names: tuple[str, ...]) -> dict[str, Kernel]:
    """Load a module into the current context; do it before any capture."""
    driver = _import_driver()
    image = ctypes.create_string_buffer(cubin, len(cubin))
    module = _checked(driver.cuModuleLoadData(ctypes.addressof(image)))
    return {name: Kernel(_checked(driver.cuModuleGetFunction(module, name.encode()))) for name in names}


@cache
def _import_driver() -> ModuleType:
    """Late, because what plans a launch is used and tested where nothing can be launched."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise EnvironmentMissingError(
            f"CUDA kernels are launched through cuda-bindings, which cannot be imported ({error}). "
            f"Run `pip install cuda-bindings`."
        ) from error


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status.value != 0:
        raise FastverifyError(f"the CUDA driver failed: {status.name}.")
    return values[0] if values else None
