"""GPU memory that every rank of a group can write: one slab per rank, mapped into the processes of its peers.

The slab is allocated by the driver itself, since memory of torch's allocator may lie in a block that cannot be handed
on. It knows nothing about what is written there. Ranks may share a GPU or have one each; each is a process of its own.
Source: CUDA driver API, interprocess communication: a mapping must be closed before its owner frees the memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from fastverify.comm.cuda.agreement import agreed, exchange, say_goodbye
from fastverify.comm.cuda.driver_calls import DriverError, call_driver, open_driver
from fastverify.comm.group import Group
from fastverify.errors import ConfigError, EnvironmentMissingError

logger = logging.getLogger(__name__)

# Arbitrary: peers that leave at all leave together; after this long the memory is left to the end of the process.
GOODBYE_TIMEOUT_S = 5.0
# Source: CUDA driver API, cuMemAlloc: memory to be shared between processes should come in multiples of 2 MiB.
_BLOCK_BYTES = 2 << 20
_ADVICE = (
    "Ranks in containers need --ipc=host or one container for all, and the same GPUs in CUDA_VISIBLE_DEVICES; the GPUs "
    "need peer access (`nvidia-smi topo -p2p w`). Where that cannot be had, use the backend host"
)


class SlabDriver(Protocol):
    """The driver calls that a slab needs; tests bring their own."""

    def allocate(self, num_bytes: int) -> int:
        """Memory of the current device."""
        ...

    def free(self, address: int) -> None:
        """End of `allocate`."""
        ...

    def export(self, address: int) -> bytes:
        """What another process needs to map the memory."""
        ...

    def open(self, handle: bytes) -> int:
        """Map another process's memory, as this process addresses it."""
        ...

    def close(self, address: int) -> None:
        """End of `open`."""
        ...


class CudaSlabDriver:
    """The calls themselves, on the current context."""

    def allocate(self, num_bytes: int) -> int:
        """See SlabDriver."""
        return int(call_driver("cuMemAlloc", num_bytes))

    def free(self, address: int) -> None:
        """See SlabDriver."""
        call_driver("cuMemFree", address)

    def export(self, address: int) -> bytes:
        """See SlabDriver."""
        return bytes(call_driver("cuIpcGetMemHandle", address).reserved)

    def open(self, handle: bytes) -> int:
        """See SlabDriver."""
        driver = open_driver()
        rebuilt = driver.CUipcMemHandle()
        rebuilt.reserved = handle
        flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(call_driver("cuIpcOpenMemHandle", rebuilt, int(flags)))

    def close(self, address: int) -> None:
        """See SlabDriver."""
        call_driver("cuIpcCloseMemHandle", address)


class PeerMemory:
    """`addresses[rank]` is that rank's slab as this process addresses it. Creating it is a collective call.

    `prepare(address)` fills this rank's slab before any peer sees it; when it returns, the GPU must have ended too.
    """

    def __init__(
        self,
        group: Group,
        num_bytes: int,
        prepare: Callable[[int], None],
        *,
        key: str,
        driver: SlabDriver | None = None,
    ) -> None:
        if len(set(group.process_ids)) < group.world_size:
            raise ConfigError(
                f"each rank must be a process of its own, got process ids {group.process_ids}. Several ranks in one "
                f"process are what VirtualRanks is for."
            )
        self._group = group
        self._driver: SlabDriver = driver or CudaSlabDriver()
        self._key = f"{key}/slab"
        self._own: int | None = None
        self._mapped: dict[int, int] = {}
        self._is_open = True
        try:
            # Whole blocks of the driver: a smaller piece would hand on the rest of its block too.
            self._open(-(-num_bytes // _BLOCK_BYTES) * _BLOCK_BYTES, prepare)
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[int]:
        """By rank."""
        assert self._own is not None
        return [self._mapped.get(rank, self._own) for rank in range(self._group.world_size)]

    def close(self, timeout_s: float = GOODBYE_TIMEOUT_S) -> None:
        """Unmap the peers' slabs, then free this rank's once nobody maps it. No kernel may be under way.

        Calling twice is harmless. A peer that lives but does not close within `timeout_s` keeps the memory alive.
        """
        if not self._is_open:
            return
        self._is_open = False
        for rank in list(self._mapped):
            _try(self._driver.close, self._mapped.pop(rank))
        holders = say_goodbye(self._group, self._key, timeout_s)
        if self._own is not None and not holders:
            _try(self._driver.free, self._own)
        elif holders:
            logger.warning(
                "rank %d leaves %s to the end of its process, since rank(s) %s may still map it",
                self._group.rank,
                self._key,
                holders,
            )
        self._own = None

    def _open(self, num_bytes: int, prepare: Callable[[int], None]) -> None:
        rank, handle = self._group.rank, b""
        with agreed(self._group, f"allocating {num_bytes} bytes of GPU memory per rank"):
            self._own = self._driver.allocate(num_bytes)
            prepare(self._own)
            handle = self._driver.export(self._own)
        handles = exchange(self._group, handle)
        with agreed(self._group, "mapping the GPU memory of the other ranks"):
            for peer in range(self._group.world_size):
                if peer != rank:
                    self._mapped[peer] = self._map(peer, handles[peer])

    def _map(self, peer: int, handle: bytes) -> int:
        try:
            return self._driver.open(handle)
        except DriverError as error:
            raise EnvironmentMissingError(
                f"rank {self._group.rank} must map the GPU memory of rank {peer}, {error.call} said {error.status}. "
                f"{_ADVICE}."
            ) from error


def _try(release: Callable[[int], None], address: int) -> None:
    """Go on where one release fails: the end of the process frees the rest."""
    try:
        release(address)
    except DriverError as error:
        logger.warning("memory at %#x was not released: %s", address, error)
