"""Keeps libraries from making NVLink multicast objects that they do not need.

torch's symmetric memory makes one at every rendezvous where the hardware could; a fault in one can take GPUs out of
service for every process of the host, so only an all-reduce that the switch sums gets them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

DISABLE_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


@contextmanager
def no_multicast() -> Iterator[None]:
    """torch reads the variable at each rendezvous; what the user set comes back afterwards."""
    before = os.environ.get(DISABLE_MULTICAST)
    os.environ[DISABLE_MULTICAST] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[DISABLE_MULTICAST]
        else:
            os.environ[DISABLE_MULTICAST] = before
