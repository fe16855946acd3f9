"""One decoding cycle of a batch: draft, verify, accept, commit. A plain cycle is one without drafts.

The extend step, which shows the drafter what the target computed, belongs to the next cycle's draft.
Knows nothing of queues, processes or text. Source: arXiv:2211.17192; docs/speculative-decoding.md.
"""

from __future__ import annotations

from collections.abc import Sequence as Batch

from fastverify.engine.acceptance import Acceptance
from fastverify.engine.draft_tree import EMPTY_TREE, DraftTree
from fastverify.engine.drafters.drafter import Drafter
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.sequence import Sequence
from fastverify.engine.stats import SpeculationTotals
from fastverify.engine.target_runner import TargetRunner, Verified


class SpecStep:
    """Decoding cycles over one target and one drafter. Every method returns how many target rows it ran."""

    def __init__(
        self, target: TargetRunner, drafter: Drafter | None, clock: PhaseClock, totals: SpeculationTotals
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._clock = clock
        self._totals = totals

    def speculative(self, sequences: Batch[Sequence]) -> int:
        """Advance every sequence by its accept tokens: at least one, the bonus token."""
        assert self._drafter is not None, "the scheduler decodes plainly without a drafter"
        trees = self._drafter.propose(sequences)
        with self._clock.phase("verify"):
            verified = self._target.verify(sequences, trees)
        with self._clock.phase("accept"):
            acceptances = _accept(sequences, trees, verified)
            self._commit(sequences, acceptances)
            self._inform_drafter(self._drafter, sequences, acceptances, verified)
            self._count(sequences, trees, acceptances)
        return verified.num_rows * len(sequences)

    def plain(self, sequences: Batch[Sequence]) -> int:
        """Advance every sequence by one token."""
        trees = [EMPTY_TREE] * len(sequences)
        with self._clock.phase("plain"):
            verified = self._target.verify(sequences, trees)
        with self._clock.phase("accept"):
            self._commit(sequences, _accept(sequences, trees, verified))
        return len(sequences)

    def _commit(self, sequences: Batch[Sequence], acceptances: Batch[Acceptance]) -> None:
        """Keep the accepted path in the cache and append the accept tokens, up to a stop."""
        for sequence, acceptance in zip(sequences, acceptances, strict=True):
            self._target.cache.keep_path(sequence.slot, sequence.num_cached, acceptance.rows)
            sequence.num_cached += len(acceptance.rows)
            sequence.append(acceptance.token_ids)

    @staticmethod
    def _inform_drafter(
        drafter: Drafter, sequences: Batch[Sequence], acceptances: Batch[Acceptance], verified: Verified
    ) -> None:
        for request, (sequence, acceptance) in enumerate(zip(sequences, acceptances, strict=True)):
            if sequence.finish_reason is None:
                drafter.observe_verify(sequence, acceptance, verified.aux_of(request))

    def _count(self, sequences: Batch[Sequence], trees: Batch[DraftTree], acceptances: Batch[Acceptance]) -> None:
        for sequence, tree, acceptance in zip(sequences, trees, acceptances, strict=True):
            for totals in (self._totals, sequence.speculation):
                totals.add(len(tree), acceptance.num_correct_drafts)


def _accept(sequences: Batch[Sequence], trees: Batch[DraftTree], verified: Verified) -> list[Acceptance]:
    return [
        verified.next_tokens.accept(sequence, tree, request * verified.num_rows)
        for request, (sequence, tree) in enumerate(zip(sequences, trees, strict=True))
    ]
