"""Environment variables that other libraries read while they are set up, for as long as that takes.

No setting of ours goes this way (env.py). torch makes an NVLink multicast object at every rendezvous of symmetric
memory where the hardware could; a fault in one can take GPUs out of service for every process of the host, so only an
all-reduce that the switch sums gets them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

DISABLE_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


@contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """These values, whatever was there; what was there comes back afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def variables_defaulted(values: Mapping[str, str]) -> AbstractContextManager[None]:
    """These values where the user has said nothing."""
    return variables_set({name: value for name, value in values.items() if name not in os.environ})


def no_multicast() -> AbstractContextManager[None]:
    """torch reads the variable at each rendezvous."""
    return variables_set({DISABLE_MULTICAST: "1"})
