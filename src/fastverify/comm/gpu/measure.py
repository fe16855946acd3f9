"""Times every candidate of a case inside a CUDA graph, checks its answers, and lets all ranks see the same outcome.

Each candidate runs once eagerly and is judged; then its chain of dependent calls is captured and timed briefly, which
drops the slow; those left take turns, round by round. The median over replays of the slowest rank counts, and the last
chain is judged. What raises or answers wrongly is out with its reason. A backend that fails on some ranks only, or
times out, is out of step and not tried again. It decides nothing: gpu/plan.py does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.gpu.case import Inputs, count_calls, digest, is_chain_right, judge, make_inputs
from fastverify.comm.gpu.device import GraphDevice
from fastverify.comm.gpu.plan import HOPELESS
from fastverify.comm.gpu.steps import Operation, SlotPool, Way, make_step
from fastverify.comm.gpu.table import Accuracy, Op, Row
from fastverify.comm.gpu.timing import slowest_rank, summarise
from fastverify.comm.group import Group
from fastverify.errors import CommTimeoutError

# Long enough that the launch of a graph and the skew between ranks vanish in it.
_MAX_CALLS = 20
# What disturbs a replay only makes it longer, so the best of a few says who is hopeless.
_QUICK_REPLAYS = 3
_ROUNDS = 15
# Worth more replays: within this factor of the fastest, at most so many, and the best of each backend that is not
# hopeless. Measured spread of two quick replays: about 10 %.
_CLOSE = 1.25
_MAX_CLOSE = 6
# From worst to best: the ranks' common verdict is the worst.
_ACCURACIES: tuple[Accuracy, ...] = ("none", "wrong", "rounded", "contract")


@dataclass(frozen=True)
class Case:
    """One operation on messages of one size. `row_elements` is the hidden size of a norm, else 0."""

    op: Op
    num_bytes: int
    row_elements: int
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        """Of one rank's message."""
        return self.num_bytes // self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a norm, else 0."""
        return self.row_elements * self.dtype.itemsize

    @property
    def shape(self) -> tuple[int, int]:
        """Of one rank's message."""
        row_elements = self.row_elements or self.num_elements
        return self.num_elements // row_elements, row_elements


@dataclass(frozen=True)
class Candidate:
    """One way to run a case, and the opened backend that runs it."""

    way: Way
    backend: Any

    @property
    def name(self) -> str:
        """Whose it is."""
        return self.way.backend

    @property
    def kind(self) -> str:
        """Whose it is and where it norms: the best of each kind is measured thoroughly."""
        return f"{self.name}+norm" if self.way.separate_norm else self.name


@dataclass
class _Trial:
    """One candidate under way. `samples_us` holds the slowest rank of each replay."""

    candidate: Candidate
    operation: Operation
    accuracy: Accuracy = "none"
    reason: str = ""
    graph: Any = None
    samples_us: list[float] = field(default_factory=list)
    is_quick: bool = True

    @property
    def best_us(self) -> float:
        """The quickest replay so far."""
        return min(self.samples_us, default=float("inf"))


@dataclass(frozen=True)
class _Outcome:
    """What one rank saw of one step: its verdict or error, and a digest of the bits it holds."""

    accuracy: Accuracy = "contract"
    error: str = ""
    is_timeout: bool = False
    bits: int = 0


class Lab:
    """Measures for one group. `broken` says which backends are out of step, and why."""

    def __init__(self, group: Group, device: GraphDevice) -> None:
        self._group = group
        self._device = device
        self.broken: dict[str, str] = {}

    def measure(self, case: Case, candidates: Sequence[Candidate]) -> tuple[Row, ...]:
        """A row per candidate; every rank calls this together and gets the same rows."""
        with self._device.use():
            inputs = make_inputs(case.shape, self._group.world_size, case.dtype, self._group.device)
            pool = SlotPool(inputs.residual, 1)
            trials = [
                _Trial(one, Operation(make_step(one.backend, one.way, inputs.weight), pool, case.op))
                for one in candidates
            ]
            _Race(self._group, self._device, inputs, self.broken).run(trials)
        return tuple(_to_row(trial, case) for trial in trials)


class _Race:
    """The trials of one case."""

    def __init__(self, group: Group, device: GraphDevice, inputs: Inputs, broken: dict[str, str]) -> None:
        self._group = group
        self._device = device
        self._inputs = inputs
        self._broken = broken
        self._num_calls = count_calls(_MAX_CALLS, inputs.residual.dtype, group.world_size)

    def run(self, trials: Sequence[_Trial]) -> None:
        """All of them, from the first call to the last check."""
        for trial in trials:
            self._step(trial, partial(self._try_once, trial))
        for trial in _alive(trials):
            self._step(trial, partial(self._capture, trial))
        alive = _alive(trials)
        self._time(alive, _QUICK_REPLAYS)
        finalists = find_finalists([(trial.candidate.kind, trial.best_us) for trial in alive])
        chosen = [trial for index, trial in enumerate(alive) if index in finalists]
        for trial in chosen:
            trial.samples_us, trial.is_quick = [], False
        self._time(chosen, _ROUNDS)
        for trial in chosen:
            self._step(trial, partial(self._judge_chain, trial))

    def _step(self, trial: _Trial, work: Callable[[], _Outcome]) -> None:
        """Run it on every rank, and let a failure of one be the failure of all."""
        backend = trial.candidate.name
        if backend in self._broken:
            trial.accuracy, trial.reason = "none", self._broken[backend]
            return
        try:
            own = work()
        except Exception as error:  # noqa: BLE001 - whatever a library raises is why it cannot be used
            own = _Outcome("none", f"{type(error).__name__}: {error}", isinstance(error, CommTimeoutError))
        outcomes = [_Outcome(**values) for values in self._share(vars(own))]
        trial.accuracy = min((outcome.accuracy for outcome in outcomes), key=_ACCURACIES.index)
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome.error]
        if failed:
            ranks = "" if len(failed) == len(outcomes) else f"on rank(s) {', '.join(map(str, failed))}: "
            trial.reason = f"{ranks}{outcomes[failed[0]].error}"
            if ranks or outcomes[failed[0]].is_timeout:
                self._broken[backend] = trial.reason
        elif trial.accuracy == "wrong":
            trial.reason = "its answers were wrong"
        elif len({outcome.bits for outcome in outcomes}) > 1:
            trial.accuracy, trial.reason = "wrong", "the ranks held different bits"

    def _try_once(self, trial: _Trial) -> _Outcome:
        operation = trial.operation
        operation.pool.fill(self._inputs.random[self._group.rank], self._inputs.residual)
        operation.call()
        self._device.synchronize()
        accuracy = judge(operation, self._inputs)
        bits = digest([operation.outputs[0], operation.pool.slots[0].residual])
        operation.rewind()
        return _Outcome(accuracy, bits=bits)

    def _capture(self, trial: _Trial) -> _Outcome:
        trial.graph = self._device.capture(trial.operation.call, self._num_calls)
        return _Outcome(trial.accuracy)

    def _judge_chain(self, trial: _Trial) -> _Outcome:
        """Once more after all the timing: the chain must still end in what it must."""
        operation = trial.operation
        self._fill(trial)
        trial.graph.replay()
        self._device.synchronize()
        is_right = is_chain_right(operation, self._inputs, self._num_calls, trial.accuracy)
        bits = digest([operation.outputs[-1], operation.pool.slots[-1].residual])
        return _Outcome(trial.accuracy if is_right else "wrong", bits=bits)

    def _time(self, trials: Sequence[_Trial], num_rounds: int) -> None:
        """Turn by turn, every second round backwards; then the slowest rank of every replay."""
        own: list[list[float]] = [[] for _ in trials]
        for number in range(num_rounds):
            for index in range(len(trials)) if number % 2 == 0 else reversed(range(len(trials))):
                trial = trials[index]
                prepare = partial(self._fill, trial)
                own[index] += self._device.time_graph(trial.graph, self._num_calls, 1, prepare, _without_waiting)
        by_rank = self._share(own)
        for index, trial in enumerate(trials):
            trial.samples_us += slowest_rank([samples[index] for samples in by_rank])

    def _fill(self, trial: _Trial) -> None:
        trial.operation.pool.fill(self._inputs.integers[self._group.rank], self._inputs.residual)

    def _share(self, own: Any) -> list[Any]:
        return [json.loads(text) for text in exchange(self._group, json.dumps(own).encode())]


def find_finalists(latencies_us: Sequence[tuple[str, float]]) -> set[int]:
    """Which of these (backend, quick latency) deserve more replays."""
    order = sorted(range(len(latencies_us)), key=lambda index: latencies_us[index][1])
    if not order:
        return set()
    best_us = latencies_us[order[0]][1]
    chosen = {index for index in order[:_MAX_CLOSE] if latencies_us[index][1] <= _CLOSE * best_us}
    seen: set[str] = set()
    for index in order:
        backend, latency_us = latencies_us[index]
        if backend not in seen and latency_us <= HOPELESS * best_us:
            chosen.add(index)
        seen.add(backend)
    return chosen


def _alive(trials: Sequence[_Trial]) -> list[_Trial]:
    return [trial for trial in trials if not trial.reason]


def _without_waiting() -> None:
    """Ranks meet in the replay that is not timed."""


def _to_row(trial: _Trial, case: Case) -> Row:
    way = trial.candidate.way
    row = Row(
        backend=way.backend,
        launch=way.launch,
        op=case.op,
        num_bytes=case.num_bytes,
        dtype=str(case.dtype).removeprefix("torch."),
        accuracy=trial.accuracy,
        row_bytes=case.row_bytes,
        separate_norm=way.separate_norm,
        out_of_place=way.out_of_place,
        is_quick=trial.is_quick,
        reason=trial.reason,
    )
    if trial.reason or not trial.samples_us:
        return row
    if trial.is_quick:
        return replace(row, latency_us=round(trial.best_us, 3))
    spread = summarise(trial.samples_us)
    return replace(row, latency_us=spread.median_us, iqr_us=spread.iqr_us, remark=spread.remark)
