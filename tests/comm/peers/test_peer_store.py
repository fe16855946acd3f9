import pytest

from fastverify.comm.group import create_group
from fastverify.comm.peers.peer_store import meet_in_store
from fastverify.errors import CommTimeoutError, UnsupportedError
from tests.ranks import run_ranks


@pytest.mark.ranks
def test_ranks_get_the_same_name_and_a_fresh_namespace_each_time() -> None:
    answers = run_ranks(meet_twice, 3)
    assert answers[0] == answers[1] == answers[2]
    assert len(set(answers[0])) == 2


def meet_twice(rank: int, world_size: int, rendezvous: str) -> tuple[str, str]:
    group = create_group(rank, world_size, rendezvous)
    first, first_name = meet_in_store(group, "lib")
    first.set("value", "old")
    second, second_name = meet_in_store(group, "lib")
    assert not second.check(["value"])
    return first_name, second_name


@pytest.mark.ranks
def test_a_rank_that_does_not_come_is_named() -> None:
    run_ranks(meet_without_rank_1, 3)


def meet_without_rank_1(rank: int, world_size: int, rendezvous: str) -> None:
    group = create_group(rank, world_size, rendezvous, timeout_s=1)
    if rank == 1:
        group.store and group.store.wait(["others/0", "others/2"])
        return
    with pytest.raises(CommTimeoutError, match=r"rank\(s\) \[1\] of 3"):
        meet_in_store(group, "lib")
    assert group.store is not None
    group.store.set(f"others/{rank}", "done")


def test_one_rank_meets_nobody() -> None:
    with pytest.raises(UnsupportedError, match="2 or more"):
        meet_in_store(create_group(0, 1), "lib")
