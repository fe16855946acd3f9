"""Which requests run: a queue, slots, and the share of each step. Every rank holds the same state.

Requests are served in order of arrival; a free slot admits the next one (continuous batching). A step computes at most
`prefill_chunk` prompt rows, then one cycle of everything that decodes. Knows no model and no clock.
"""

from __future__ import annotations

import heapq
from collections import deque

from fastverify.engine.config import EngineConfig
from fastverify.engine.request import Request
from fastverify.engine.sequence import Sequence


class Scheduler:
    """Queue and slots. `running` is in order of admission."""

    def __init__(self, config: EngineConfig, eos_token_ids: tuple[int, ...]) -> None:
        self._config = config
        self._eos_token_ids = eos_token_ids
        self._free_slots = list(range(config.max_batch))
        self.waiting: deque[Request] = deque()
        self.running: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def cancel(self, request_id: str) -> bool:
        """End a request. True: it was waiting and is gone; running ones are marked, unknown ids are ignored."""
        for request in self.waiting:
            if request.request_id == request_id:
                self.waiting.remove(request)
                return True
        for sequence in self.running:
            if sequence.request_id == request_id:
                sequence.finish_reason = "cancelled"
        return False

    def admit(self) -> None:
        """Give free slots, lowest first, to waiting requests."""
        while self.waiting and self._free_slots:
            slot = heapq.heappop(self._free_slots)
            self.running.append(Sequence(self.waiting.popleft(), slot, self._eos_token_ids, self._config.seed))

    def prefill_chunks(self) -> list[tuple[Sequence, int]]:
        """Prompt rows of this step: (sequence, number of rows)."""
        chunks = []
        budget = self._config.prefill_chunk
        for sequence in self.running:
            if budget and sequence.is_prefilling:
                num_rows = min(budget, sequence.num_prompt_tokens - sequence.num_cached)
                chunks.append((sequence, num_rows))
                budget -= num_rows
        return chunks

    def decoding(self, *, speculative: bool) -> list[Sequence]:
        """Running sequences past their prompt that decode in this way, in slot order."""
        has_drafter = self._config.drafter != "none"
        ready = (s for s in self.running if not s.is_prefilling and s.finish_reason is None)
        return sorted((s for s in ready if (s.speculative and has_drafter) == speculative), key=lambda s: s.slot)

    def release_finished(self) -> list[Sequence]:
        """Take finished sequences out and free their slots."""
        finished = [sequence for sequence in self.running if sequence.finish_reason is not None]
        if finished:
            self.running = [sequence for sequence in self.running if sequence.finish_reason is None]
            for sequence in finished:
                heapq.heappush(self._free_slots, sequence.slot)
        return finished
