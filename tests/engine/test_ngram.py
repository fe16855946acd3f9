from fastverify.engine.config import EngineConfig
from fastverify.engine.draft_tree import EMPTY_TREE, DraftTree, chain
from fastverify.engine.drafters.ngram import NgramDrafter
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.request import Request, SamplingParams
from fastverify.engine.sequence import Sequence


def propose(token_ids: list[int], **settings: object) -> DraftTree:
    config = EngineConfig(drafter="ngram", **settings)  # type: ignore[arg-type]
    drafter = NgramDrafter(config, PhaseClock([]))
    sequence = Sequence(Request("r", tuple(token_ids), SamplingParams(8)), 0, (), 0)
    drafter.observe_prefill(sequence, 0, None)
    return drafter.propose([sequence])[0]


def test_the_newest_continuation_of_the_longest_match_is_proposed() -> None:
    # "1 2" occurred twice: followed by 3 4 5 and, later, by 6 7 8. "9 1 2" occurred once, followed by 3 4 5.
    assert propose([9, 1, 2, 3, 4, 5, 0, 1, 2, 6, 7, 8, 1, 2], ngram_max=2) == chain((6, 7, 8))
    assert propose([9, 1, 2, 3, 4, 5, 0, 1, 2, 6, 7, 8, 9, 1, 2], ngram_max=3) == chain((3, 4, 5))


def test_a_continuation_may_run_into_the_match_itself() -> None:
    assert propose([7, 7, 7], num_draft_steps=3) == chain((7,))
    assert propose([1, 2, 3, 1, 2], num_draft_steps=4) == chain((3, 1, 2))


def test_nothing_is_proposed_without_a_match() -> None:
    assert propose([1, 2, 3]) == EMPTY_TREE
    assert propose([1, 2, 3, 2], ngram_min=2) == EMPTY_TREE


def test_several_continuations_make_a_tree() -> None:
    tree = propose(
        [1, 5, 6, 1, 5, 7, 1], draft_shape="tree", top_k=2, num_draft_steps=2, num_proposed_drafts=4, ngram_max=1
    )
    assert tree == DraftTree((5, 7, 6), (0, 1, 1))


def test_the_index_grows_with_the_sequence_and_starts_anew_with_a_request() -> None:
    drafter = NgramDrafter(EngineConfig(drafter="ngram"), PhaseClock([]))
    first = Sequence(Request("a", (1, 2, 3), SamplingParams(8)), 0, (), 0)
    drafter.observe_prefill(first, 0, None)
    assert drafter.propose([first]) == [EMPTY_TREE]
    first.append([1])
    assert drafter.propose([first]) == [chain((2, 3, 1))]
    second = Sequence(Request("b", (4, 1), SamplingParams(8)), 0, (), 0)
    drafter.observe_prefill(second, 0, None)
    assert drafter.propose([second]) == [EMPTY_TREE]
