"""A CUDA driver of the mind: hands out numbers, remembers what is open, and fails where a test says so."""

from dataclasses import dataclass, field

from fastverify.comm.cuda.driver_calls import DriverError

HANDLE_BYTES = 64


@dataclass
class FakeSlabDriver:
    """Addresses are `base` + a count. `log` holds the calls in order; `fails` names a call and the error it gives."""

    base: int
    fails: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    live: set[int] = field(default_factory=set)

    def allocate(self, num_bytes: int) -> int:
        self._start("allocate")
        assert num_bytes % (2 << 20) == 0
        return self._hand_out()

    def free(self, address: int) -> None:
        self._start("free")
        self.live.remove(address)

    def export(self, address: int) -> bytes:
        self._start("export")
        return address.to_bytes(HANDLE_BYTES, "little")

    def open(self, handle: bytes) -> int:
        self._start("open")
        assert len(handle) == HANDLE_BYTES
        address = 10 * int.from_bytes(handle, "little") + self.base
        self.live.add(address)
        return address

    def close(self, address: int) -> None:
        self._start("close")
        self.live.remove(address)

    def _hand_out(self) -> int:
        address = self.base + len(self.log)
        self.live.add(address)
        return address

    def _start(self, call: str) -> None:
        self.log.append(call)
        if call in self.fails:
            raise DriverError(call, self.fails[call])


@dataclass
class FakeHostDriver:
    """The device sees host memory `offset` higher."""

    offset: int = 0
    fails: bool = False
    pinned: dict[int, int] = field(default_factory=dict)

    def register(self, address: int, num_bytes: int) -> None:
        if self.fails:
            raise DriverError("cuMemHostRegister", "CUDA_ERROR_OUT_OF_MEMORY")
        self.pinned[address] = num_bytes

    def unregister(self, address: int) -> None:
        del self.pinned[address]

    def device_address(self, address: int) -> int:
        return address + self.offset
