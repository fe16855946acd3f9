"""What every drafter must do: see `engine.drafters.drafter.Drafter`. A test module derives from the class and gives
`create_drafter`, a fresh drafter at every call, and the most drafts it may propose."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from fastverify.engine.acceptance import accept_greedy
from fastverify.engine.draft_tree import DraftTree, row_depths
from fastverify.engine.drafters.drafter import Drafter
from fastverify.engine.request import Request, SamplingParams
from fastverify.engine.sequence import Sequence

VOCAB, NUM_CAPTURED, HIDDEN = 48, 3, 32
PROMPT = (7, 8, 9, 7, 8, 9, 7, 8)
OTHER_PROMPT = (1, 2, 1, 2, 1)


class Run:
    """One request as a drafter sees it, with made-up hidden states and target choices that follow from the text."""

    def __init__(self, drafter: Drafter, prompt: tuple[int, ...], slot: int, temperature: float = 0.0) -> None:
        self.drafter = drafter
        sampling = SamplingParams(64, temperature=temperature, seed=5)
        self.sequence = Sequence(Request(f"{prompt}", prompt, sampling), slot, (), 0)

    def prefill(self, *cuts: int) -> None:
        bounds = [0, *cuts, len(self.sequence.token_ids)]
        for start, stop in zip(bounds, bounds[1:], strict=False):
            self.drafter.observe_prefill(self.sequence, start, self._aux(start, stop - start))
            self.sequence.num_cached = stop
        self.sequence.append([3])

    def cycle(self) -> DraftTree:
        return self.verify(self.drafter.propose([self.sequence])[0])

    def verify(self, tree: DraftTree) -> DraftTree:
        """A target that accepts about half of the drafts."""
        draw = random.Random(str(self.sequence.token_ids))
        choices = [draw.randrange(VOCAB) for _ in range(len(tree) + 1)]
        for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
            if draw.random() < 0.5:
                choices[parent] = token_id
        acceptance = accept_greedy(tree, choices)
        aux = self._aux(self.sequence.num_cached, len(tree) + 1)
        self.sequence.num_cached += len(acceptance.rows)
        self.sequence.append(acceptance.token_ids)
        self.drafter.observe_verify(self.sequence, acceptance, aux)
        return tree

    @staticmethod
    def _aux(start: int, num_rows: int) -> torch.Tensor:
        """Hidden states of a position are the same in every run, however rows are cut into passes."""
        rows = [
            torch.randn(NUM_CAPTURED, HIDDEN, generator=torch.Generator().manual_seed(start + row))
            for row in range(num_rows)
        ]
        return torch.stack(rows)


class DrafterContract:
    """Derive and give both attributes as fixtures."""

    @pytest.fixture
    def create_drafter(self) -> Callable[[], Drafter]:
        raise NotImplementedError("the deriving class gives a factory of drafters")

    @pytest.fixture
    def most_drafts(self) -> int:
        raise NotImplementedError("the deriving class says how many drafts there may be")

    def test_proposals_are_trees_of_known_tokens(self, create_drafter: Callable[[], Drafter], most_drafts: int) -> None:
        with torch.inference_mode():
            run = Run(create_drafter(), PROMPT, 0)
            run.prefill()
            trees = [run.cycle() for _ in range(8)]
        assert any(len(tree) for tree in trees)
        for tree in trees:
            assert len(tree) <= most_drafts
            assert all(0 <= token_id < VOCAB for token_id in tree.token_ids)
            assert len(row_depths(tree.parents)) == len(tree) + 1

    def test_the_same_history_gives_the_same_drafts(self, create_drafter: Callable[[], Drafter]) -> None:
        """Ranks rely on it: they draft apart and must agree."""
        with torch.inference_mode():
            runs = [Run(create_drafter(), PROMPT, 0) for _ in range(2)]
            for run in runs:
                run.prefill()
            for _ in range(6):
                first, second = (run.cycle() for run in runs)
                assert first == second

    def test_chunks_of_a_prompt_make_no_difference(self, create_drafter: Callable[[], Drafter]) -> None:
        with torch.inference_mode():
            whole, cut = Run(create_drafter(), PROMPT, 0), Run(create_drafter(), PROMPT, 0)
            whole.prefill()
            cut.prefill(1, 5)
            assert [whole.cycle() for _ in range(4)] == [cut.cycle() for _ in range(4)]

    def test_a_reused_slot_remembers_nothing(self, create_drafter: Callable[[], Drafter]) -> None:
        with torch.inference_mode():
            used = create_drafter()
            before = Run(used, OTHER_PROMPT, 1)
            before.prefill()
            for _ in range(3):
                before.cycle()
            again, fresh = Run(used, PROMPT, 1), Run(create_drafter(), PROMPT, 1)
            for run in (again, fresh):
                run.prefill()
            assert [again.cycle() for _ in range(4)] == [fresh.cycle() for _ in range(4)]

    def test_batch_mates_make_no_difference(self, create_drafter: Callable[[], Drafter]) -> None:
        with torch.inference_mode():
            drafter = create_drafter()
            together = [Run(drafter, PROMPT, 0), Run(drafter, OTHER_PROMPT, 1)]
            alone = [Run(create_drafter(), PROMPT, 0), Run(create_drafter(), OTHER_PROMPT, 1)]
            for run in (*together, *alone):
                run.prefill()
            for _ in range(4):
                trees = drafter.propose([run.sequence for run in together])
                assert trees == [run.cycle() for run in alone]
                for run, tree in zip(together, trees, strict=True):
                    run.verify(tree)
