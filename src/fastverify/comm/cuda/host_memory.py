"""One mapping of host memory that the GPUs of all ranks reach: an inbox per rank, near the GPU that reads it.

A file in /dev/shm backs it. Rank 0 creates it under a name of the group, and its name is removed as soon as every rank
has mapped it, so nothing stays behind. Each rank reserves and fills its own inbox, on the NUMA node of its GPU, before
the driver pins the pages in every process. It knows nothing about what is written there.
Source: CUDA driver API, cuMemHostRegister; shared memory policies, mbind(2).
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

import torch

from fastverify.comm.backend import SUPPORTED, Support
from fastverify.comm.cuda import numa
from fastverify.comm.cuda.agreement import agreed, exchange
from fastverify.comm.cuda.driver_calls import DriverError, call_driver, open_driver
from fastverify.comm.group import Group
from fastverify.errors import EnvironmentMissingError
from fastverify.units import format_bytes

logger = logging.getLogger(__name__)

_FOLDER = Path("/dev/shm")
# Inboxes start on pages of their own even where pages are huge.
_ALIGNMENT = 2 << 20


class HostDriver(Protocol):
    """The driver calls that pinned memory needs; tests bring their own."""

    def register(self, address: int, num_bytes: int) -> None:
        """Pin the pages and map them for every GPU of this process."""
        ...

    def unregister(self, address: int) -> None:
        """End of `register`."""
        ...

    def device_address(self, address: int) -> int:
        """How the current GPU addresses pinned memory."""
        ...


class CudaHostDriver:
    """The calls themselves, on the current context."""

    def register(self, address: int, num_bytes: int) -> None:
        """See HostDriver."""
        driver = open_driver()
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        call_driver("cuMemHostRegister", address, num_bytes, flags)

    def unregister(self, address: int) -> None:
        """See HostDriver."""
        call_driver("cuMemHostUnregister", address)

    def device_address(self, address: int) -> int:
        """See HostDriver."""
        return int(call_driver("cuMemHostGetDevicePointer", address, 0))


class HostMemory:
    """`addresses[rank]` is that rank's inbox as this rank's GPU addresses it. Creating it is a collective call.

    `node` is the NUMA node of this rank's GPU; `prepare(inbox)` fills this rank's inbox; `placements[rank]` says where
    the pages of that rank's inbox went.
    """

    def __init__(
        self,
        group: Group,
        inbox_bytes: int,
        node: int,
        prepare: Callable[[torch.Tensor], object],
        *,
        key: str,
        driver: HostDriver | None = None,
        folder: Path = _FOLDER,
    ) -> None:
        self._group = group
        self._driver: HostDriver = driver or CudaHostDriver()
        self._stride = shared_bytes(inbox_bytes, 1)
        self._bytes: torch.Tensor | None = None
        self._is_registered = False
        self._device_address = 0
        self.placements: list[str] = []
        try:
            with self._map(folder / f"{group.name}-{key.replace('/', '-')}") as file:
                self._fill(file, inbox_bytes, node, prepare)
            self._register()
        except BaseException:
            self.close()
            raise

    @property
    def num_bytes(self) -> int:
        """Size of the whole mapping."""
        return self._stride * self._group.world_size

    @property
    def addresses(self) -> list[int]:
        """By rank."""
        return [self._device_address + rank * self._stride for rank in range(self._group.world_size)]

    def close(self) -> None:
        """Unpin and unmap; the system frees the pages with the last mapping. No kernel may be under way.

        Calling twice is harmless, and no rank waits for another.
        """
        if self._bytes is None:
            return
        if self._is_registered:
            self._is_registered = False
            try:
                self._driver.unregister(self._bytes.data_ptr())
            except DriverError as error:
                logger.warning("host memory stays pinned until this process ends: %s", error)
        # The mapping is closed with the last tensor on it.
        self._bytes = None

    def _map(self, path: Path) -> BinaryIO:
        """Returns the open file, which has lost its name."""
        file: BinaryIO | None = None
        try:
            with agreed(self._group, f"creating {path}"):
                if self._group.rank == 0:
                    _create(path, self.num_bytes)
            with agreed(self._group, f"mapping {path}"):
                file = path.open("r+b")
                self._bytes = torch.frombuffer(mmap.mmap(file.fileno(), self.num_bytes), dtype=torch.uint8)
        except BaseException:
            if file is not None:
                file.close()
            raise
        finally:
            if self._group.rank == 0:
                path.unlink(missing_ok=True)
        assert file is not None
        return file

    def _fill(self, file: BinaryIO, inbox_bytes: int, node: int, prepare: Callable[[torch.Tensor], object]) -> None:
        placement = ""
        with agreed(self._group, f"reserving {format_bytes(self.num_bytes)} of shared memory"):
            assert self._bytes is not None
            start = self._group.rank * self._stride
            inbox = self._bytes[start : start + self._stride]
            placement = numa.place(inbox.data_ptr(), self._stride, node)
            _reserve(file, start, self._stride)
            prepare(inbox[:inbox_bytes])
        self.placements = [part.decode() for part in exchange(self._group, placement.encode())]
        if self._group.rank == 0:
            logger.info("host inboxes lie %s", "; ".join(self.placements))

    def _register(self) -> None:
        with agreed(self._group, f"pinning {format_bytes(self.num_bytes)} of host memory"):
            assert self._bytes is not None
            address = self._bytes.data_ptr()
            self._driver.register(address, self.num_bytes)
            self._is_registered = True
            self._device_address = self._driver.device_address(address)


def shared_bytes(inbox_bytes: int, world_size: int) -> int:
    """Size of the mapping that holds every rank's inbox."""
    return -(-inbox_bytes // _ALIGNMENT) * _ALIGNMENT * world_size


def find_room(num_bytes: int, folder: Path = _FOLDER) -> Support:
    """Whether the folder of shared memory has this much left."""
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return Support(ok=False, reason=f"there is no {folder} ({error})")
    if free_bytes >= num_bytes:
        return SUPPORTED
    reason = f"{folder} has {format_bytes(free_bytes)} free and {format_bytes(num_bytes)} are needed"
    return Support(ok=False, reason=f"{reason}; in a container, raise --shm-size")


def _create(path: Path, num_bytes: int) -> None:
    """An empty file of this size, which has no pages yet: the ranks decide where those lie."""
    room = find_room(num_bytes, path.parent)
    if not room.ok:
        raise EnvironmentMissingError(f"host inboxes need shared memory: {room.reason}.")
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "r+b") as file:
        file.truncate(num_bytes)


def _reserve(file: BinaryIO, start: int, num_bytes: int) -> None:
    """Give a part of the file its pages. Touching them instead would end the process where memory has run out."""
    try:
        os.posix_fallocate(file.fileno(), start, num_bytes)
    except OSError as error:
        raise EnvironmentMissingError(
            f"host inboxes need {format_bytes(num_bytes)} of shared memory per rank, the system said {error}. "
            f"In a container, raise --shm-size and the memory limit."
        ) from error
