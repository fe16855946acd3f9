"""A small model of inbox memory: ranks, threads that run in any order, stores that arrive late and out of order.

What it takes from the sources (inbox.cuh, all_reduce.cu, two_shot.cu, islands.cu): where a call writes and in which
order, what a reader waits for, what it empties. A thread takes one unit, or the same unit of every part.
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
    """The same on every rank. For flags, `num_units` are chunks of two stores each. Sentinels have no outboxes."""

    protocol: str  # lines, sentinel, flags
    num_units: int
    algorithm: str = "one_shot"  # two_shot, islands (4 ranks)
    has_outboxes: bool = False


@dataclass(frozen=True)
class Rules:
    """What a broken implementation would get wrong."""

    num_slots: int = 2
    readers_empty: bool = True
    epoch_per_call: bool = True
    regions_per_phase: bool = True


@dataclass(frozen=True)
class Team:
    """Ranks that share the parts of a message; parts are of whole units, the last ones shorter or empty."""

    members: tuple[int, ...]
    num_units: int

    @property
    def part_units(self) -> int:
        """Units of a part that is whole."""
        return -(-self.num_units // len(self.members))

    def having(self, unit: int, but: int) -> list[int]:
        """Members whose part has this unit."""
        return [m for i, m in enumerate(self.members) if m != but and i * self.part_units + unit < self.num_units]


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
        epoch = self.first_epoch
        for index, call in enumerate(self.calls):
            thread = {"one_shot": self._one_shot, "two_shot": self._two_shot, "islands": self._islands}[call.algorithm]
            num_threads = call.num_units if call.algorithm == "one_shot" else self._team(rank, call).part_units
            yield [thread(Caller(self, rank, index, call, epoch), unit) for unit in range(num_threads)]
            if self.rules.epoch_per_call or call.num_units > 1:
                epoch = 2 if epoch == 2**32 - 1 else epoch + 1

    def _team(self, rank: int, call: Call) -> Team:
        ranks = tuple(range(len(self.weights)))
        if call.algorithm == "islands":
            half = len(ranks) // 2
            ranks = ranks[:half] if rank < half else ranks[half:]
        return Team(ranks, call.num_units)

    def _one_shot(self, caller: Caller, unit: int) -> Iterator[bool]:
        peers = [peer for peer in range(len(self.weights)) if peer != caller.rank]
        yield from caller.send("first", peers, unit)
        yield from caller.receive("first", peers, unit)
        self.num_sums += 1

    def _two_shot(self, caller: Caller, unit: int) -> Iterator[bool]:
        team = self._team(caller.rank, caller.call)
        yield from self._sum_own_part(caller, team, unit)
        yield from self._share(caller, team, unit)

    def _islands(self, caller: Caller, unit: int) -> Iterator[bool]:
        team = self._team(caller.rank, caller.call)
        yield from self._sum_own_part(caller, team, unit)
        if caller.rank in team.having(unit, but=-1):
            counterpart = [(caller.rank + len(self.weights) // 2) % len(self.weights)]
            yield from caller.send("exchange", counterpart, unit)
            yield from caller.receive("exchange", counterpart, unit)
        yield from self._share(caller, team, unit)

    def _sum_own_part(self, caller: Caller, team: Team, unit: int) -> Iterator[bool]:
        for owner in team.having(unit, but=caller.rank):
            yield from caller.send("first", [owner], unit, part=owner)
        if caller.rank in team.having(unit, but=-1):
            peers = [peer for peer in team.members if peer != caller.rank]
            yield from caller.receive("first", peers, unit, part=caller.rank)
            self.num_sums += 1

    def _share(self, caller: Caller, team: Team, unit: int) -> Iterator[bool]:
        peers = [peer for peer in team.members if peer != caller.rank]
        if caller.rank in team.having(unit, but=-1):
            yield from caller.send("gather", peers, unit)
        yield from caller.receive("gather", team.having(unit, but=caller.rank), unit)

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


@dataclass(frozen=True)
class Caller:
    """One rank in one call. Steps yield True after a move and False after a look in vain."""

    model: ProtocolModel
    rank: int
    index: int
    call: Call
    epoch: int

    def send(self, phase: str, readers: list[int], unit: int, part: int = -1) -> Iterator[bool]:
        """One unit to each reader, or once for all of them."""
        bases = [self._base(phase, reader, self.rank, unit, part) for reader in readers]
        for base in dict.fromkeys(bases):
            data = (self.index, phase, self.rank, unit, part)
            value = (self.epoch, data) if self.call.protocol == "lines" else data
            stores = [Store(address, value) for address in self._data_addresses(base)]
            if self.call.protocol == "flags":
                stores.append(Store((*base, "flag"), self.epoch, after=list(stores)))
            self.model.in_flight += stores
            yield True

    def receive(self, phase: str, sources: list[int], unit: int, part: int = -1) -> Iterator[bool]:
        """One unit from each source."""
        for source in sources:
            base = self._base(phase, self.rank, source, unit, part)
            while not self._has_arrived(base):
                yield False
            for address in self._data_addresses(base):
                value = self.model.memory.get(address, EMPTY)
                data = value[1] if self.call.protocol == "lines" else value
                if data != (self.index, phase, source, unit, part):
                    raise WrongDataError(f"rank {self.rank} in call {self.index} read {data} from rank {source}")
                if self.call.protocol == "sentinel" and self.model.rules.readers_empty:
                    self.model.in_flight.append(Store(address, EMPTY))
            yield True

    def _base(self, phase: str, reader: int, source: int, unit: int, part: int) -> tuple:
        """Its first entry is whose memory it is. An outbox holds the units of all parts."""
        region = phase if self.model.rules.regions_per_phase else "first"
        slot = self.epoch % self.model.rules.num_slots
        owner, place = (source, (part, unit)) if self.call.has_outboxes else (reader, unit)
        return owner, self.call.protocol, self.call.has_outboxes, region, slot, source, place

    def _data_addresses(self, base: tuple) -> list[tuple]:
        return [(*base, half) for half in range(2)] if self.call.protocol == "flags" else [base]

    def _has_arrived(self, base: tuple) -> bool:
        if self.call.protocol == "flags":
            return self.model.memory.get((*base, "flag")) == self.epoch
        value = self.model.memory.get(base, EMPTY)
        return value != EMPTY and (self.call.protocol == "sentinel" or value[0] == self.epoch)
