"""One way to call the CUDA driver that setup code shares: by name, with the driver's own name of the error.

It knows no call in particular. cuda-bindings is imported at the first call, so everything that only may need a GPU can
be imported, and tested, without one.
Source: CUDA driver API, https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from fastverify.errors import EnvironmentMissingError, FastverifyError


class DriverError(FastverifyError):
    """A call that the CUDA driver refused. `status` is the driver's name of the error."""

    def __init__(self, call: str, status: str) -> None:
        super().__init__(f"the CUDA driver refused {call}: {status}.")
        self.call = call
        self.status = status


@cache
def open_driver() -> ModuleType:
    """The driver's bindings. Raises EnvironmentMissingError where they cannot be imported."""
    try:
        return import_module("cuda.bindings.driver")
    except (ImportError, RuntimeError) as error:
        raise EnvironmentMissingError(
            f"the CUDA driver is called through cuda-bindings, which cannot be loaded ({error}). "
            f"Run `pip install cuda-bindings`."
        ) from error


def call_driver(name: str, *arguments: Any) -> Any:
    """What the call returned: nothing, one value, or a tuple. Raises DriverError."""
    status, *values = getattr(open_driver(), name)(*arguments)
    if status.value != 0:
        raise DriverError(name, status.name)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)
