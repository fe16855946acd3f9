"""What one measurement of a server holds: both arms, raw samples, the anatomy of a cycle. Written to files as JSON.

Times are milliseconds per cycle or per pass of one request batch; token rates are decode tokens per second of one
request. Knows no server: `measure.py` fills these, `diagnosis/` and `tuning/` read them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastverify.servers.server import Arm, Setting

SCHEMA_VERSION = 1
SPECULATIVE_PHASES = ("draft", "verify_compute", "verify_all_reduce", "verify_gather", "extend", "accept", "host")
PLAIN_PHASES = ("plain_compute", "plain_all_reduce", "plain_gather", "accept", "host")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sample(_Record):
    """One request as it was seen: the raw material of every median and gate."""

    arm: Arm
    prompt_id: str
    repeat: int
    num_tokens: int
    token_ids: tuple[int, ...]
    """Empty where the server does not report token ids."""
    text: str
    ttft_s: float
    decode_s: float
    """First to last token."""
    tok_s: float
    timing_source: Literal["server", "client"]
    """"server": the server timed its own tokens; "client": arrival times of streamed chunks."""
    accept_length: float | None


class CollectiveCost(_Record):
    """One kind of collective in one phase, per pass of that phase."""

    phase: str
    op: str
    per_pass: float
    bytes_per_pass: float
    ms_per_pass: float


class ArmMeasurement(_Record):
    """One arm of one server. Values that the server does not tell are None or empty, never 0."""

    arm: Arm
    tok_s: float
    """Median over `tok_s_samples`."""
    tok_s_samples: tuple[float, ...]
    output_token_ids: dict[str, tuple[int, ...]]
    """By prompt id, from the first repeat."""
    unstable_prompt_ids: tuple[str, ...]
    """Prompts whose greedy output differed between repeats of this arm."""
    batch: int
    """Requests per cycle in most of the time; the anatomy is of this batch only."""
    num_cycles: int
    cycle_ms: float | None
    anatomy_ms: dict[str, float]
    """Phase to ms per cycle; the phases of the arm are SPECULATIVE_PHASES or PLAIN_PHASES."""
    accept_length: float
    correct_drafts_per_position: tuple[float, ...]
    """Entry i: share of verify passes in which at least i + 1 drafts were correct (not conditional)."""
    num_proposed_drafts: float
    """Proposed drafts per request and verify pass."""
    collectives: tuple[CollectiveCost, ...]
    all_reduces_per_verify: float | None
    samples: tuple[Sample, ...]


class ServerMeasurement(_Record):
    """Both arms of one launch."""

    schema_version: int = SCHEMA_VERSION
    requested_settings: dict[str, Setting]
    settings: dict[str, Setting]
    """After resolution, as the server reports them."""
    arms: dict[str, ArmMeasurement]
    num_tokens: int
    repeats: int
    concurrency: int
    elapsed_s: float
