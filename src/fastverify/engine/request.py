"""What goes into the engine and what comes out: requests, sampling parameters, token events, per-request statistics.

Plain values that cross process borders by pickling. Knows no torch and no text: tokenisation is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastverify.errors import ConfigError

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. Temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    """None: derived from the engine's seed and the request id."""
    stop_token_ids: tuple[int, ...] = ()
    """In addition to the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """The model's end-of-sequence tokens do not end the request; stop_token_ids still do."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        if not 0.0 <= self.temperature <= 100.0:
            raise ConfigError(f"temperature must be in 0..100, got {self.temperature}.")


@dataclass(frozen=True)
class Request:
    """One prompt to continue."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    speculative: bool = True
    """False: plain decoding for this request, so that both arms can be interleaved in one server."""
    stream: bool = True
    """False: one event with all tokens at the end, which spares the owner a wake-up per cycle beside busy ranks."""

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ConfigError(f"a request needs at least one prompt token, got none (request {self.request_id!r}).")


@dataclass(frozen=True)
class RequestStats:
    """What one request cost. `decode_s` runs from its first to its last token and excludes prefill and waiting."""

    num_output_tokens: int
    num_verify_passes: int
    num_correct_drafts: int
    num_proposed_drafts: int
    correct_drafts_per_position: tuple[int, ...]
    """Entry i: verify passes in which at least i + 1 drafts were correct."""
    prefill_s: float
    decode_s: float

    @property
    def accept_length(self) -> float:
        """Tokens gained per verify pass, bonus included; 1.0 where no verify pass ran."""
        if self.num_verify_passes == 0:
            return 1.0
        return 1.0 + self.num_correct_drafts / self.num_verify_passes


@dataclass(frozen=True)
class TokenEvent:
    """New tokens of one request; the last event of a request carries its reason and statistics."""

    request_id: str
    token_ids: tuple[int, ...]
    finished: bool = False
    finish_reason: FinishReason | None = None
    error: str | None = None
    stats: RequestStats | None = None
