"""What a report holds: everything that the page, the Markdown and report.json show, with no layout.

A superset of the object that `fastverify tune --json` and `demo --json` end with (result.py), under the same names. A
value that was not measured is None, never 0; a campaign that is not over has fewer of them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.servers.server import Arm, Setting
from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.gates import Answer
from fastverify.tuning.plan import Assumption
from fastverify.tuning.result import ExperimentSummary, SideNumbers, WinnerSummary

SCHEMA_VERSION = 1
End = Literal["before", "after"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bar(_Record):
    """The anatomy of one arm at one end of the campaign."""

    end: End
    arm: Arm
    phases_ms: dict[str, float]
    cycle_ms: float
    accept_length: float
    """1 for the plain arm."""


class Decomposition(_Record):
    """Where the gain of speculative decoding came from; `total = shared * speculation`, exactly."""

    total: float
    """Speculative tok/s after over before."""
    shared: float
    """Plain tok/s after over before: what the same changes gave to decoding without speculation."""
    speculation: float
    """The rest: speedup of speculation over plain, after over before."""
    plain_saved_ms: float
    plain_saved_all_reduce_ms: float | None


class MessageMark(_Record):
    """The size of one all-reduce in one pass of this model."""

    label: str
    num_bytes: float


class DraftLength(_Record):
    """The cost model's answer for one number of proposed drafts."""

    num_proposed_drafts: int
    accept_length: float
    cycle_ms: float
    speedup: float
    """Over plain decoding."""


class AcceptanceCurve(_Record):
    """How far drafts get, and what that is worth."""

    end: End
    correct_drafts_per_position: tuple[float, ...]
    points: tuple[DraftLength, ...]
    """Empty where the drafts are not a chain of a draft model."""
    chosen: int | None
    plain_ms: float | None


class Check(_Record):
    """One thing that was checked, and on what the answer rests."""

    name: str
    answer: Answer
    detail: str


class Fact(_Record):
    """One line of "how it was measured"."""

    name: str
    value: str


class Report(_Record):
    """Everything about one campaign."""

    schema_version: int = SCHEMA_VERSION
    title: str
    generated_at: str
    finished: bool
    headline_before: str
    headline_after: str
    before: SideNumbers | None
    after: SideNumbers | None
    """None until an experiment was kept or the campaign is over."""
    experiments: tuple[ExperimentSummary, ...]
    """Tried ones first, in the order they ran."""
    winner: WinnerSummary | None
    median_prediction_error: float | None
    noise: float | None
    """Relative difference of the decode rate between two launches of the baseline."""
    decomposition: Decomposition | None
    bars: tuple[Bar, ...]
    all_reduce: tuple[AllReduceRow, ...]
    marks: tuple[MessageMark, ...]
    acceptance: AcceptanceCurve | None
    changed_settings: dict[str, tuple[Setting | None, Setting | None]]
    """Resolved settings before and after, only where they differ."""
    checks: tuple[Check, ...]
    method: tuple[Fact, ...]
    assumptions: tuple[Assumption, ...]
    """What the plan's predictions rest on."""
    limits: tuple[str, ...]
    """What was not shown."""
