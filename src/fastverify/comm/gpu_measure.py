"""Times every candidate of a case inside a CUDA graph, checks its answers, and lets all ranks see the same outcome.

Each candidate runs once eagerly and is judged; then its chain of dependent calls is captured and timed briefly, which
drops the slow; those left take turns, round by round. The slowest rank's median counts, and the last chain is judged
again. What raises or answers wrongly is out with its reason. A backend that fails on some ranks only, or times out, is
out of step and not tried again. It decides nothing: gpu_plan.py does.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.gpu_case import Candidate, Case, digest
from fastverify.comm.gpu_plan import HOPELESS
from fastverify.comm.gpu_table import Accuracy, Op, Row
from fastverify.comm.gpu_timing import capture, num_safe_calls, time_replays, timing_stream
from fastverify.comm.group import Group
from fastverify.errors import CommTimeoutError

Call = Callable[[], object]

# Long enough that the launch of a graph and the skew between ranks vanish in it.
_MAX_CALLS = 20
_QUICK_REPLAYS = 2
_ROUNDS = 15
# Worth more replays: within this factor of the fastest, at most so many, and the best of each backend that is not
# hopeless. Measured spread of two quick replays: about 10 %.
_CLOSE = 1.25
_MAX_CLOSE = 6
# From worst to best: the ranks' common verdict is the worst.
_ACCURACIES: tuple[Accuracy, ...] = ("none", "wrong", "rounded", "contract")


class Timer(Protocol):
    """How calls are run and timed; tests bring their own."""

    def run(self, call: Call) -> None:
        """One call now; ended when this returns."""
        ...

    def capture(self, call: Call, num_calls: int) -> Any:
        """A graph of dependent calls."""
        ...

    def time(self, graph: Any, num_calls: int, replays: int, prepare: Call) -> list[float]:
        """Microseconds per call, one number per replay; ended when this returns."""
        ...


class GraphTimer:
    """CUDA graphs and events, everything on the side stream of one device. All graphs share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = timing_stream(device)
        with torch.cuda.stream(self._stream):
            word = torch.zeros(1, device=device)
            self._first = capture(word.zero_, 1)

    def run(self, call: Call) -> None:
        """See Timer."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            call()
        self._stream.synchronize()

    def capture(self, call: Call, num_calls: int) -> torch.cuda.CUDAGraph:
        """See Timer."""
        with torch.cuda.stream(self._stream):
            return capture(call, num_calls, like=self._first)

    def time(self, graph: torch.cuda.CUDAGraph, num_calls: int, replays: int, prepare: Call) -> list[float]:
        """See Timer."""
        with torch.cuda.stream(self._stream):
            return time_replays(graph, num_calls, replays, prepare)


@dataclass
class _Trial:
    """One candidate under way. `answer` is the last call's, in memory that the graph writes at every replay."""

    candidate: Candidate
    accuracy: Accuracy = "none"
    reason: str = ""
    first: torch.Tensor | None = None
    answer: torch.Tensor | None = None
    graph: Any = None
    samples_us: list[float] = field(default_factory=list)
    latency_us: float | None = None

    def call(self, case: Case) -> None:
        """Start it."""
        self.answer = self.candidate.start(case.tensors)


@dataclass(frozen=True)
class _Outcome:
    """What one rank saw of one step: its verdict or error, and a digest of the bits it holds."""

    accuracy: Accuracy = "contract"
    error: str = ""
    is_timeout: bool = False
    bits: int = 0
    latencies_us: tuple[float, ...] = ()


class Lab:
    """Measures for one group. `broken` says which backends are out of step, and why."""

    def __init__(self, group: Group, timer: Timer) -> None:
        self._group = group
        self._timer = timer
        self._num_calls = 1
        self.broken: dict[str, str] = {}

    def measure(self, case: Case, candidates: Sequence[Candidate]) -> tuple[Row, ...]:
        """A row per candidate; every rank calls this together and gets the same rows."""
        trials = [_Trial(candidate) for candidate in candidates]
        self._num_calls = count_calls(case.op, case.dtype, self._group.world_size)
        for trial in trials:
            self._step(trial, partial(self._try_once, trial, case))
        for trial in _alive(trials):
            self._step(trial, partial(self._capture, trial, case))
        self._time([_alive(trials)], case, _QUICK_REPLAYS)
        finalists = find_finalists([(trial.candidate.backend, _latency_us(trial)) for trial in _alive(trials)])
        chosen = [trial for index, trial in enumerate(_alive(trials)) if index in finalists]
        for trial in chosen:
            trial.samples_us.clear()
        self._time([chosen] * _ROUNDS, case, 1)
        for trial in chosen:
            self._step(trial, partial(self._judge_chain, trial, case))
        return tuple(_to_row(trial, case) for trial in trials)

    def _step(self, trial: _Trial, work: Callable[[], _Outcome]) -> None:
        """Run it on every rank, and let a failure of one be the failure of all."""
        backend = trial.candidate.backend
        if backend in self.broken:
            trial.accuracy, trial.reason = "none", self.broken[backend]
            return
        try:
            own = work()
        except Exception as error:  # noqa: BLE001 - whatever a library raises is why it cannot be used
            own = _Outcome("none", f"{type(error).__name__}: {error}", isinstance(error, CommTimeoutError))
        outcomes = self._share(own)
        trial.accuracy = min((outcome.accuracy for outcome in outcomes), key=_ACCURACIES.index)
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome.error]
        if failed:
            ranks = "" if len(failed) == len(outcomes) else f"on rank(s) {', '.join(map(str, failed))}: "
            trial.reason = f"{ranks}{outcomes[failed[0]].error}"
            if ranks or outcomes[failed[0]].is_timeout:
                self.broken[backend] = trial.reason
        elif trial.accuracy == "wrong":
            trial.reason = "its answers were wrong"
        elif len({outcome.bits for outcome in outcomes}) > 1:
            trial.accuracy, trial.reason = "wrong", "the ranks held different bits"

    def _try_once(self, trial: _Trial, case: Case) -> _Outcome:
        case.reset()
        self._timer.run(lambda: trial.call(case))
        assert trial.answer is not None
        trial.first = trial.answer.clone()
        return _Outcome(case.judge(trial.first), bits=digest(trial.first))

    def _capture(self, trial: _Trial, case: Case) -> _Outcome:
        trial.graph = self._timer.capture(lambda: trial.call(case), self._num_calls)
        return _Outcome(trial.accuracy)

    def _judge_chain(self, trial: _Trial, case: Case) -> _Outcome:
        """Once more after all the timing: the chain must still end in what it must."""
        self._timer.time(trial.graph, self._num_calls, 1, case.reset)
        assert trial.first is not None
        assert trial.answer is not None
        is_right = case.judge_chain(self._num_calls, trial.first, trial.answer, trial.accuracy)
        return _Outcome(trial.accuracy if is_right else "wrong", bits=digest(trial.answer))

    def _time(self, rounds: Sequence[Sequence[_Trial]], case: Case, replays: int) -> None:
        """Turn by turn; then the slowest rank's median of each."""
        trials = rounds[0]
        for turn in rounds:
            for trial in turn:
                trial.samples_us += self._timer.time(trial.graph, self._num_calls, replays, case.reset)
        own = _Outcome(latencies_us=tuple(statistics.median(trial.samples_us) for trial in trials))
        slowest_us = [max(each) for each in zip(*(outcome.latencies_us for outcome in self._share(own)), strict=True)]
        for trial, latency_us in zip(trials, slowest_us, strict=True):
            trial.latency_us = latency_us

    def _share(self, own: _Outcome) -> list[_Outcome]:
        return [_Outcome(**json.loads(text)) for text in exchange(self._group, json.dumps(vars(own)).encode())]


def count_calls(op: Op, dtype: torch.dtype, world_size: int) -> int:
    """Calls of one graph: sums must stay finite, and beside a norm so must their squares in float32."""
    num_calls = min(_MAX_CALLS, num_safe_calls(dtype, world_size))
    if op == "all_reduce_residual_rmsnorm":
        # A square doubles the exponent; a row of thousands of them takes a few calls more.
        return max(1, min(num_calls, num_safe_calls(dtype, world_size) // 2 - 4))
    return num_calls


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


def _latency_us(trial: _Trial) -> float:
    return float("inf") if trial.latency_us is None else trial.latency_us


def _to_row(trial: _Trial, case: Case) -> Row:
    candidate = trial.candidate
    return Row(
        backend=candidate.backend,
        launch=candidate.launch,
        op=case.op,
        num_bytes=case.num_bytes,
        dtype=str(case.dtype).removeprefix("torch."),
        accuracy=trial.accuracy,
        row_bytes=case.row_elements * case.dtype.itemsize,
        separate_norm=candidate.separate_norm,
        latency_us=None if trial.reason or trial.latency_us is None else round(trial.latency_us, 3),
        reason=trial.reason,
    )
