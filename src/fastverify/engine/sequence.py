"""One request while it runs: its tokens, its slot in the caches, its random generator, its counters.

Invariant while decoding: every token but the last is in the target's cache (`num_cached == len(token_ids) - 1`); the
last one is the current token, row 0 of the next verify pass. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from time import perf_counter

from fastverify.engine.request import FinishReason, Request, RequestStats
from fastverify.engine.sampling import create_generator
from fastverify.engine.stats import SpeculationTotals

# Below it logits divided by it overflow float32 and a softmax has NaN; above it only exact ties share probability.
_MIN_TEMPERATURE = 1e-30


class Sequence:
    """State of one running request. `slot` is its place in every cache."""

    def __init__(self, request: Request, slot: int, eos_token_ids: Tokens[int], engine_seed: int) -> None:
        sampling = request.sampling
        self.request_id = request.request_id
        self.slot = slot
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached = 0
        self.speculative = request.speculative
        # Temperature 0 stays 0: greedy.
        self.temperature = sampling.temperature and max(sampling.temperature, _MIN_TEMPERATURE)
        self._stream = request.stream
        self.generator = create_generator(sampling.seed, engine_seed, request.request_id)
        self.finish_reason: FinishReason | None = None
        self.speculation = SpeculationTotals()
        self._max_tokens = sampling.max_tokens
        self._stop_token_ids = frozenset((*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)))
        self._num_sent = self.num_prompt_tokens
        self._admitted_s = perf_counter()
        self._first_token_s = self._last_token_s = self._admitted_s

    @property
    def is_greedy(self) -> bool:
        """Whether tokens are chosen by arg-max."""
        return self.temperature == 0.0

    @property
    def is_prefilling(self) -> bool:
        """Whether prompt rows are still to be computed."""
        return self.num_cached < self.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def append(self, token_ids: Tokens[int]) -> None:
        """Add accept tokens up to the one that ends the request, which is included."""
        self._last_token_s = perf_counter()
        if self.num_output_tokens == 0:
            self._first_token_s = self._last_token_s
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if token_id in self._stop_token_ids:
                self.finish_reason = "stop"
                return
            if self.num_output_tokens == self._max_tokens:
                self.finish_reason = "length"
                return

    def take_unsent(self) -> tuple[int, ...]:
        """Generated tokens that no event has carried yet; none before the end of an answer that is not streamed."""
        if not self._stream and self.finish_reason is None:
            return ()
        unsent = tuple(self.token_ids[self._num_sent :])
        self._num_sent = len(self.token_ids)
        return unsent

    def stats(self) -> RequestStats:
        """Statistics so far."""
        speculation = self.speculation
        return RequestStats(
            num_output_tokens=self.num_output_tokens,
            num_verify_passes=speculation.num_verify_passes,
            num_correct_drafts=speculation.num_correct_drafts,
            num_proposed_drafts=speculation.num_proposed_drafts,
            correct_drafts_per_position=tuple(speculation.correct_drafts_per_position),
            prefill_s=self._first_token_s - self._admitted_s,
            decode_s=self._last_token_s - self._first_token_s,
        )
