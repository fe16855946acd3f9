"""What a report holds: everything that the page, the Markdown and report.json show, with no text of theirs.

The top level is a superset of the object that `fastverify demo --json` ends with: `before`, `after`, `experiments`,
`winner`. A value that was not measured is None, never 0, and a campaign that is not over simply has fewer of them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.servers.server import Setting
from fastverify.tuning.all_reduce_table import AllReduceRow
from fastverify.tuning.interval import Interval

SCHEMA_VERSION = 1
State = Literal["pending", "running", "done", "failed", "skipped"]
End = Literal["before", "after"]
Answer = Literal["passed", "failed", "could not tell"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Side(_Record):
    """The machine-readable numbers of one end of the campaign; names are stable."""

    accept_length: float | None
    plain_tok_s: float | None
    speculative_tok_s: float | None
    speedup: float | None
    break_even_accept_length: float | None
    verify_ms: float | None
    verify_all_reduce_ms: float | None
    all_reduces_per_verify: float | None


class Bar(_Record):
    """The anatomy of one arm at one end of the campaign."""

    side: End
    arm: Literal["plain", "speculative"]
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
    plain_saved_ms: float | None
    plain_saved_all_reduce_ms: float | None


class ExperimentRow(_Record):
    """One experiment of the plan with what became of it."""

    id: str
    title: str
    changes: dict[str, Setting]
    state: State
    predicted_speedup: Interval | None
    """Speculative tok/s over that of the settings it was tried on."""
    measured_speedup: float | None
    outcome: str
    """Failure class, `kept`, `not kept`; empty while pending."""
    reason: str
    kept: bool


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


class Acceptance(_Record):
    """How far drafts get, and what that is worth."""

    correct_drafts_per_position: tuple[float, ...]
    curve: tuple[DraftLength, ...]
    chosen: int | None
    plain_ms: float | None


class Winner(_Record):
    """The settings that won, as a command and as a difference to the baseline."""

    settings: dict[str, Setting]
    launch_command: str
    diff: dict[str, tuple[Setting | None, Setting | None]]
    """Setting to (before, after), resolved values, only where they differ."""


class Proof(_Record):
    """One thing that was checked, and on what it rests."""

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
    verdict_before: str
    verdict_after: str
    before: Side | None
    after: Side | None
    decomposition: Decomposition | None
    bars: tuple[Bar, ...]
    experiments: tuple[ExperimentRow, ...]
    median_error: float | None
    """Median of |predicted - measured| / measured over the experiments that have both."""
    all_reduce: tuple[AllReduceRow, ...]
    marks: tuple[MessageMark, ...]
    acceptance: Acceptance | None
    winner: Winner | None
    proofs: tuple[Proof, ...]
    method: tuple[Fact, ...]
    limits: tuple[str, ...]
    """What was assumed, and what was not shown."""
