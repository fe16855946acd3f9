import pytest

from fastverify.engine.draft_tree import (
    DraftTree,
    ancestor_rows,
    chain,
    keep_most_probable,
    merge_branches,
    row_depths,
)
from fastverify.errors import ShapeError

# The current token has children 1 and 2; row 1 has children 3 and 4, row 2 has child 5.
PARENTS = (0, 0, 1, 1, 2)


def test_structure_of_a_tree() -> None:
    assert row_depths(PARENTS) == [0, 1, 1, 2, 2, 2]
    assert ancestor_rows(PARENTS) == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5]]
    assert not DraftTree((5, 6, 7, 8, 9), PARENTS).is_chain
    assert chain((5, 6, 7)).is_chain


def test_the_first_of_equal_siblings_is_the_child() -> None:
    assert DraftTree((7, 7), (0, 0)).children == {(0, 7): 1}


def test_a_parent_comes_before_its_children() -> None:
    with pytest.raises(ShapeError, match=r"a row in 0\.\.i, got parents \(1, 0\)"):
        DraftTree((1, 2), (1, 0))


def test_kept_nodes_stay_connected_and_in_order() -> None:
    # Node 3 has its parent's probability: a tie that must not cut it off.
    tree = keep_most_probable((10, 11, 12, 13, 14), PARENTS, (-0.5, -0.4, -0.9, -0.5, -3.0), 3)
    assert tree == DraftTree((10, 11, 13), (0, 0, 1))


def test_branches_share_prefixes_and_stop_at_the_count() -> None:
    tree = merge_branches([(1, 2, 3), (1, 4), (5, 6)], 5)
    assert tree == DraftTree((1, 2, 3, 4, 5), (0, 1, 2, 1, 0))
