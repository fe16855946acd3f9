"""What ranks tell each other, on CPU processes."""

import os
import signal
import time

import pytest

from fastverify.comm.cuda.agreement import agreed, exchange, say_goodbye
from fastverify.comm.group import create_group
from fastverify.errors import FastverifyError, UnsupportedError
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks


def test_bytes_of_any_length_arrive_by_rank() -> None:
    assert run_ranks(exchange_names, 3) == [[b"", b"\x00\xff", b"rank 2" * 500]] * 3


def exchange_names(rank: int, world_size: int, rendezvous: str) -> list[bytes]:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    return exchange(group, [b"", b"\x00\xff", b"rank 2" * 500][rank])


def test_one_rank_s_failure_is_everybody_s() -> None:
    errors = run_ranks(fail_on_rank_1, 3)
    assert errors == ["UnsupportedError: lifting failed on rank(s) 1 of 3: it needs SM80\nor later."] * 3


def fail_on_rank_1(rank: int, world_size: int, rendezvous: str) -> str:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    with agreed(group, "resting"):
        pass
    with pytest.raises(UnsupportedError) as caught, agreed(group, "lifting"):
        fail_if(rank == 1, UnsupportedError("it needs SM80\nor later."))
    with pytest.raises(FastverifyError, match=r"rank\(s\) 0, 2 of 3: not on purpose"), agreed(group, "falling"):
        fail_if(rank != 1, RuntimeError("not on purpose"))
    return f"{type(caught.value).__name__}: {caught.value}"


def fail_if(is_failing: bool, error: Exception) -> None:
    if is_failing:
        raise error


def test_goodbyes_wait_for_the_living_and_not_for_the_dead() -> None:
    holders = run_ranks(say_two_goodbyes, 3, killed=(2,))
    assert holders[:2] == [([], [1]), ([], [])]


def say_two_goodbyes(rank: int, world_size: int, rendezvous: str) -> tuple[list[int], list[int]]:
    group = create_group(rank, world_size, rendezvous, timeout_s=10)
    if rank == 1:
        time.sleep(0.2)
    everybody = say_goodbye(group, "first", 5)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    start_s = time.monotonic()
    # Rank 0 gives up on rank 1, which comes a second later; rank 2 is dead and nobody waits for it.
    if rank == 1:
        time.sleep(1.0)
    late = say_goodbye(group, "second", 0.3 if rank == 0 else 5)
    assert time.monotonic() - start_s < 2.5
    exchange_is_over = say_goodbye(group, "third", 5)
    assert exchange_is_over == []
    return everybody, late
