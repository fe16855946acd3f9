"""One environment of the GPU benchmark over a whole run: its lane, what failed in it and why, and its restarts.

Where one backend brings the ranks down, the lane starts anew without it, sets the others up and prepares their open
cases again; each restart takes something out, so it ends. It knows no GPU: what it starts is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fastverify.comm.bench.gpu_rows import CaseKey, Prepared
from fastverify.comm.bench.lanes import Failure, Lane, LaneError, LaneSpec

# Arbitrary: compiling kernels, importing vLLM, or a chooser that measures takes seconds up to a minute.
CREATE_TIMEOUT_S = 180.0
PREPARE_TIMEOUT_S = 60.0
TURN_TIMEOUT_S = 30.0

OpenLane = Callable[[LaneSpec], Lane]


@dataclass(frozen=True)
class LanePlan:
    """What one environment is to measure.

    `setting` names its NCCL setting, None where NCCL plays no part; `refusal`: why it need not even start.
    """

    spec: LaneSpec
    backends: tuple[str, ...]
    setting: str | None = None
    refusal: str = ""


@dataclass
class Case:
    """One thing to time in one lane, and what came of it so far."""

    run: LaneRun
    key: CaseKey
    correct: bool = True
    num_calls: int | None = None
    launch: str | None = None
    samples_us: list[float] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        """Why it does not run; None while it does."""
        return self.run.reason_against(self.key)


class LaneRun:
    """Asks its lane one question at a time. `on_failure(run, text)` may tell a better reason than the text has."""

    def __init__(self, plan: LanePlan, open_lane: OpenLane, on_failure: Callable[[LaneRun, str], str | None]) -> None:
        self.plan = plan
        self.setups: dict[str, str] = {}
        self._open_lane = open_lane
        self._on_failure = on_failure
        self._lane: Lane | None = None
        self._is_whole = False
        self._open_cases: dict[CaseKey, Case] = {}
        # A reason counts for every case whose parts begin with its key: a backend, its operation, or one size of it.
        self._reasons: dict[tuple[object, ...], str] = {}
        if plan.refusal:
            self._reasons |= {(name,): plan.refusal for name in plan.backends}

    def reason_against(self, key: CaseKey) -> str | None:
        """Why this case cannot run here."""
        parts = _parts(key)
        return next((self._reasons[parts[:n]] for n in (1, 4, 5) if parts[:n] in self._reasons), None)

    def prepare(self, case: Case) -> None:
        """Set a case up; its `reason` tells where that failed."""
        if self._ensure() and case.reason is None:
            self._prepare(case)

    def turn(self, case: Case, num_samples: int) -> None:
        """One block of samples: of each, the slowest rank's time."""
        if self._ensure() and case.reason is None:
            answers = self._ask(_parts(case.key)[:4], "turn", case.key, num_samples, timeout_s=TURN_TIMEOUT_S)
            if answers is not None:
                case.samples_us += [max(ranks) for ranks in zip(*answers, strict=True)]

    def finish(self, case: Case) -> None:
        """Check once more and let go."""
        if self._ensure() and case.reason is None:
            answers = self._ask(_parts(case.key)[:4], "finish", case.key, timeout_s=PREPARE_TIMEOUT_S)
            case.correct &= answers is not None and all(answers)
        self._open_cases.pop(case.key, None)

    def time_empty(self, num_samples: int) -> list[float] | None:
        """The floor, where the lane stands."""
        if not self._ensure() or self._lane is None:
            return None
        try:
            answers = self._lane.call("time_empty", num_samples, timeout_s=TURN_TIMEOUT_S)
        except LaneError as error:
            self._lost(error)
            return None
        return [max(ranks) for ranks in zip(*answers, strict=True)]

    def close(self) -> None:
        """End the processes."""
        if self._lane is not None:
            self._lane.close()
        self._lane = None

    def _ensure(self) -> bool:
        """Whether anything of this lane still works; then it stands, with every such backend and every open case."""
        while not self._is_whole:
            backends = [name for name in self.plan.backends if (name,) not in self._reasons]
            if not backends:
                self.close()
                return False
            self._is_whole = all(self._rebuild(backends))
        return True

    def _rebuild(self, backends: list[str]) -> Iterator[bool]:
        """Whether the lane still stands after each step."""
        try:
            self._lane = self._open_lane(self.plan.spec)
        except LaneError as error:
            text = self._explain(error)
            self._reasons |= {(name,): text for name in backends}
            yield False
            return
        for name in backends:
            self._create(name)
            yield self._lane is not None
        for case in list(self._open_cases.values()):
            if case.reason is None:
                self._prepare(case)
            yield self._lane is not None

    def _create(self, name: str) -> None:
        answers = self._ask((name,), "create", name, timeout_s=CREATE_TIMEOUT_S)
        if answers is None:
            return
        refusals = [answer.reason for answer in answers if not answer.ok]
        if refusals:
            # A rank that can run it says only who cannot.
            self._reasons[(name,)] = next((text for text in refusals if not text.startswith("rank(s)")), refusals[0])
        else:
            self.setups[name] = answers[0].reason

    def _prepare(self, case: Case) -> None:
        answers = self._ask(_parts(case.key)[:4], "prepare", case.key, timeout_s=PREPARE_TIMEOUT_S)
        if answers is None:
            return
        first: Prepared = next((answer for answer in answers if not answer.ok), answers[0])
        if not first.ok:
            self._reasons[_parts(case.key)] = first.reason
            return
        case.correct &= all(answer.correct for answer in answers)
        case.num_calls, case.launch = first.num_calls, first.launch
        self._open_cases[case.key] = case

    def _ask(self, blamed: tuple[object, ...], method: str, *arguments: Any, timeout_s: float) -> list[Any] | None:
        """The ranks' answers; None where they failed, which is then held against `blamed`, or all of its backend."""
        assert self._lane is not None
        try:
            return self._lane.call(method, *arguments, timeout_s=timeout_s)
        except LaneError as error:
            text = self._explain(error)
            if error.failure is Failure.REFUSED:
                at_size = _parts(arguments[0]) if isinstance(arguments[0], CaseKey) else blamed
                self._reasons[at_size] = text
                return None
            whole_backend = error.failure in (Failure.ENDED, Failure.HUNG) and blamed[-1] is None
            self._reasons[blamed[:1] if whole_backend else blamed] = text
            self._lost(error)
            return None

    def _explain(self, error: LaneError) -> str:
        text = str(error)
        return self._on_failure(self, f"{text}\n{error.details}") or text

    def _lost(self, error: LaneError) -> None:
        if error.failure is not Failure.REFUSED:
            self._lane, self._is_whole = None, False


def _parts(key: CaseKey) -> tuple[object, ...]:
    """Backend, operation, mode, launch that tuning tries, size: from the whole to the part."""
    return (key.backend, (key.fused, key.separate), key.mode, key.candidate, key.num_bytes)
