"""A small model of inbox memory: ranks, threads that run in any order, stores that arrive late and out of order.

What it takes from sources/inbox.cuh and all_reduce.cu: where a call writes, what a reader waits for, what it empties.
What it assumes of hardware: stores to one address arrive in order; a flag arrives after the data stored before it;
stores to a rank's own memory have arrived when its kernel ends; one kernel of a rank follows the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

EMPTY = "empty"


@dataclass(frozen=True)
class Call:
    """The same on every rank. For flags, `num_units` are chunks of two stores each."""

    protocol: str  # lines, sentinel, flags
    num_units: int


@dataclass(frozen=True)
class Rules:
    """What a broken implementation would get wrong."""

    num_slots: int = 2
    readers_empty: bool = True
    epoch_per_call: bool = True


class WrongDataError(AssertionError):
    """A rank took something for the data of its call that was not."""


class StuckError(AssertionError):
    """Nobody can move."""


@dataclass
class Store:
    """One store on its way; `after`: stores that must have arrived before it."""

    address: tuple
    value: object
    after: list[Store] = field(default_factory=list)
    has_arrived: bool = False


class ProtocolModel:
    """Runs the calls on all ranks under one random schedule; a rank of weight 0 moves when nobody else can."""

    def __init__(
        self, calls: list[Call], weights: list[int], rules: Rules, schedule: random.Random, first_epoch: int
    ) -> None:
        self.calls, self.weights, self.rules, self.schedule = calls, weights, rules, schedule
        self.first_epoch = first_epoch
        self.memory: dict[tuple, object] = {}
        self.in_flight: list[Store] = []
        self.num_sums = 0

    def run(self) -> None:
        """Raises WrongDataError or StuckError."""
        kernels = {rank: self._kernels_of(rank) for rank in range(len(self.weights))}
        running = {rank: next(stream) for rank, stream in kernels.items()}
        while running:
            if not self._step(running):
                raise StuckError(f"ranks {sorted(running)} wait for ever")
            for rank in [rank for rank, threads in running.items() if not threads]:
                self._end_kernel(rank)
                following = next(kernels[rank], None)
                if following is None:
                    del running[rank]
                else:
                    running[rank] = following

    def _step(self, running: dict[int, list[Iterator[bool]]]) -> bool:
        """One store arrives or one thread moves; False if nothing can."""
        deliverable = [store for store in self.in_flight if self._may_arrive(store)]
        if deliverable and self.schedule.random() < 0.5:
            self._arrive(self.schedule.choice(deliverable))
            return True
        ranks = [rank for rank in running for _ in range(self.weights[rank])]
        self.schedule.shuffle(ranks)
        for rank in [*ranks, *(rank for rank in running if rank not in ranks)]:
            threads = running[rank]
            for thread in self.schedule.sample(threads, len(threads)):
                moved = next(thread, None)
                if moved is None:
                    threads.remove(thread)
                if moved is not False:
                    return True
        if deliverable:
            self._arrive(self.schedule.choice(deliverable))
        return bool(deliverable)

    def _kernels_of(self, rank: int) -> Iterator[list[Iterator[bool]]]:
        epochs = {"lines": self.first_epoch, "sentinel": self.first_epoch, "flags": self.first_epoch}
        for index, call in enumerate(self.calls):
            epoch = epochs[call.protocol]
            yield [self._thread(rank, index, call, epoch, unit) for unit in range(call.num_units)]
            if self.rules.epoch_per_call or call.num_units > 1:
                epochs[call.protocol] = 2 if epoch == 2**32 - 1 else epoch + 1

    def _thread(self, rank: int, index: int, call: Call, epoch: int, unit: int) -> Iterator[bool]:
        """Yields True after it moved and False when it looked in vain."""
        peers = [peer for peer in range(len(self.weights)) if peer != rank]
        slot = epoch % self.rules.num_slots
        for peer in peers:
            self._send(call, (peer, call.protocol, slot, rank, unit), epoch, (index, rank, unit))
            yield True
        for source in peers:
            base = (rank, call.protocol, slot, source, unit)
            while not self._has_arrived(call, base, epoch):
                yield False
            for address in self._data_addresses(call, base):
                value = self.memory.get(address, EMPTY)
                data = value[1] if call.protocol == "lines" else value
                if data != (index, source, unit):
                    raise WrongDataError(f"rank {rank} in call {index} read {data} from rank {source}, unit {unit}")
                if call.protocol == "sentinel" and self.rules.readers_empty:
                    self.in_flight.append(Store(address, EMPTY))
            yield True
        self.num_sums += 1

    def _data_addresses(self, call: Call, base: tuple) -> list[tuple]:
        return [(*base, half) for half in range(2)] if call.protocol == "flags" else [base]

    def _send(self, call: Call, base: tuple, epoch: int, data: object) -> None:
        value = (epoch, data) if call.protocol == "lines" else data
        stores = [Store(address, value) for address in self._data_addresses(call, base)]
        if call.protocol == "flags":
            stores.append(Store((*base, "flag"), epoch, after=list(stores)))
        self.in_flight += stores

    def _has_arrived(self, call: Call, base: tuple, epoch: int) -> bool:
        if call.protocol == "flags":
            return self.memory.get((*base, "flag")) == epoch
        value = self.memory.get(base, EMPTY)
        return value != EMPTY and (call.protocol == "sentinel" or value[0] == epoch)

    def _may_arrive(self, store: Store) -> bool:
        first = next(other for other in self.in_flight if other.address == store.address)
        return first is store and all(before.has_arrived for before in store.after)

    def _arrive(self, store: Store) -> None:
        self.in_flight.remove(store)
        self.memory[store.address] = store.value
        store.has_arrived = True

    def _end_kernel(self, rank: int) -> None:
        """Stores to own memory are done; each may have to wait for earlier ones to its address."""
        while own := [store for store in self.in_flight if store.address[0] == rank and store.value == EMPTY]:
            address = own[0].address
            self._arrive(next(store for store in self.in_flight if store.address == address))
