"""The engine of one rank: models, caches, scheduler and cycles, advanced one step at a time.

Every rank of a group makes the same steps with the same commands between them, so all hold the same state. A world of
one can be stepped in the caller's process. Knows nothing of processes, pipes or text.
"""

from __future__ import annotations

from collections.abc import Sequence as Batch

import torch

from fastverify.engine.config import EngineConfig
from fastverify.engine.draft_tree import EMPTY_TREE
from fastverify.engine.drafters.drafter import Drafter
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.request import Request, TokenEvent
from fastverify.engine.scheduler import Scheduler
from fastverify.engine.sequence import Sequence
from fastverify.engine.spec_step import SpecStep
from fastverify.engine.stats import CycleKey, CycleKind, EngineStats, EngineTotals
from fastverify.engine.target_runner import TargetRunner
from fastverify.units import NS_PER_S


class EngineCore:
    """Steps of one rank."""

    def __init__(self, config: EngineConfig, target: TargetRunner, drafter: Drafter | None, clock: PhaseClock) -> None:
        self.clock = clock
        self._scheduler = Scheduler(config, target.model.config.eos_token_ids)
        self._target = target
        self._drafter = drafter
        self._totals = EngineTotals()
        self._spec_step = SpecStep(target, drafter, clock, self._totals.speculation)
        self._events: list[TokenEvent] = []
        self.last_step_met = False
        """Whether the newest step had a target pass, so that all ranks have met in its collectives."""

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return self._scheduler.is_idle

    def submit(self, request: Request) -> None:
        """Queue a request for the next steps."""
        self._scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request; its last event says so. Unknown and finished ids are ignored."""
        if self._scheduler.cancel(request_id):
            self._events.append(TokenEvent(request_id, (), finished=True, finish_reason="cancelled"))

    @torch.inference_mode()
    def step(self) -> list[TokenEvent]:
        """Prompt rows, then a cycle of each kind that has sequences; the events of everything that advanced.

        Time from the end of the step before belongs to this step unless `clock.restart` was called in between.
        """
        self._scheduler.admit()
        did = [self._prefill(), self._cycle("speculative"), self._cycle("plain")]
        self.last_step_met = any(did)
        return self._take_events()

    def _prefill(self) -> bool:
        """The next prompt rows; False when there are none."""
        chunks = self._scheduler.prefill_chunks()
        if not chunks:
            return False
        with self.clock.phase("prefill"):
            output = self._target.prefill(chunks)
            self._show_prompts_to_drafter(chunks, output.aux_TAD)
            self._choose_first_tokens(chunks, output.hidden_TD)
        self._totals.passes["prefill"] += 1
        self._totals.prompt_tokens += sum(num_rows for _, num_rows in chunks)
        self._totals.prefill_ns += self.clock.elapsed_ns
        self.clock.restart()
        return True

    def _show_prompts_to_drafter(self, chunks: Batch[tuple[Sequence, int]], aux_TAD: torch.Tensor | None) -> None:
        row = 0
        for sequence, num_rows in chunks:
            if self._drafter is not None and sequence.speculative:
                aux = None if aux_TAD is None else aux_TAD[row : row + num_rows]
                self._drafter.observe_prefill(sequence, sequence.num_cached, aux)
            sequence.num_cached += num_rows
            row += num_rows

    def _choose_first_tokens(self, chunks: Batch[tuple[Sequence, int]], hidden_TD: torch.Tensor) -> None:
        """The token after the prompt, for the sequences whose last prompt row was in this pass."""
        row, last_rows, complete = -1, [], []
        for sequence, num_rows in chunks:
            row += num_rows
            if not sequence.is_prefilling:
                last_rows.append(row)
                complete.append(sequence)
        if complete:
            next_tokens = self._target.next_tokens(hidden_TD[last_rows], complete)
            for index, sequence in enumerate(complete):
                sequence.append(next_tokens.accept(sequence, EMPTY_TREE, index).token_ids)

    def _cycle(self, kind: CycleKind) -> bool:
        """One cycle of the sequences that decode in this way; False when there are none."""
        sequences = self._scheduler.decoding(speculative=kind == "speculative")
        if not sequences:
            return False
        is_speculative = kind == "speculative"
        num_rows = self._spec_step.speculative(sequences) if is_speculative else self._spec_step.plain(sequences)
        pass_phase = "verify" if is_speculative else "plain"
        phases = ("draft", "extend", "accept") if is_speculative else ("accept",)
        target_pass = self.clock.time(pass_phase)
        phase_ns = {
            f"{pass_phase}_compute": target_pass.compute_ns,
            f"{pass_phase}_all_reduce": target_pass.all_reduce_ns,
            f"{pass_phase}_gather": target_pass.gather_ns,
            **{phase: self.clock.time(phase).total_ns for phase in phases},
        }
        self._totals.add_cycle(CycleKey(kind, len(sequences), num_rows), phase_ns, self.clock.elapsed_ns)
        self.clock.restart()
        self._totals.passes.update((pass_phase, *(phase for phase in ("draft", "extend") if phase_ns.get(phase))))
        return True

    def _take_events(self) -> list[TokenEvent]:
        """Tokens of this step by request; a finished request's event carries its statistics."""
        events, self._events = self._events, []
        for sequence in self._scheduler.running:
            token_ids = sequence.take_unsent()
            self._totals.output_tokens += len(token_ids)
            if sequence.finish_reason is not None:
                events.append(
                    TokenEvent(sequence.request_id, token_ids, True, sequence.finish_reason, None, sequence.stats())
                )
            elif token_ids:
                events.append(TokenEvent(sequence.request_id, token_ids))
        self._scheduler.release_finished()
        return events

    def stats(self) -> EngineStats:
        """Snapshot of everything counted so far."""
        totals = self._totals
        return EngineStats(
            cycles=[cycle.to_dict(key) for key, cycle in totals.cycles.items()],
            collectives=self.clock.collectives(),
            speculation=totals.speculation.to_dict(),
            passes=dict(totals.passes),
            prefill_s=totals.prefill_ns / NS_PER_S,
            tokens={"prompt": totals.prompt_tokens, "output": totals.output_tokens},
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
        )
