import os
import signal
import time
from functools import partial
from typing import Any

import pytest

from fastverify.comm.bench.lanes import Failure, Lane, LaneError, LaneSpec
from fastverify.errors import UnsupportedError
from tests.ranks import CONTEXT

pytestmark = pytest.mark.ranks


class Worker:
    """What a rank of a lane may do, on purpose or not."""

    def __init__(self, greeting: str, rank: int, folder: str) -> None:
        self.rank, self.greeting = rank, greeting
        os.write(1, b"a library says hello\n")

    def greet(self, name: str) -> str:
        return f"{self.greeting} {name} from {self.rank} with {os.environ.get('LANE_TEST', 'nothing')}"

    def fail(self, how: str, ranks: tuple[int, ...]) -> str:
        if self.rank in ranks:
            if how == "die":
                os.write(2, b"last words of the library\n")
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "refuse":
                raise UnsupportedError("not on this machine.")
            elif how == "raise":
                raise RuntimeError("first line\nsecond line")
            else:
                time.sleep(60)
        return "fine"


def open_lane(num_ranks: int = 2, env: dict[str, str] | None = None, worker: Any = Worker) -> Lane:
    return Lane(LaneSpec("test", num_ranks, partial(worker, "hello"), env or {}), context=CONTEXT)


def test_every_rank_answers_in_order_with_the_environment_of_its_lane() -> None:
    lane, other = open_lane(env={"LANE_TEST": "one"}), open_lane(env={"LANE_TEST": "two"})
    assert lane.call("greet", "you", timeout_s=10) == [f"hello you from {rank} with one" for rank in (0, 1)]
    assert other.call("greet", "you", timeout_s=10)[0].endswith("with two")
    assert "LANE_TEST" not in os.environ
    lane.close()
    other.close()
    lane.close()


@pytest.mark.parametrize(
    ("how", "ranks", "failure", "reason", "detail"),
    [
        ("die", (1,), Failure.ENDED, "rank 1 failed in fail: the process ended with SIGKILL", "last words"),
        ("raise", (0,), Failure.RAISED, "rank 0 failed in fail: RuntimeError: first line", "second line"),
        ("hang", (1,), Failure.HUNG, r"rank\(s\) \[1\] did not end fail within 1 s", "library says hello"),
        ("refuse", (1,), Failure.RAISED, "rank 1 failed in fail: not on this machine", ""),
    ],
)
def test_a_failing_lane_is_killed_alone_and_says_why(
    how: str, ranks: tuple[int, ...], failure: Failure, reason: str, detail: str
) -> None:
    lane, other = open_lane(), open_lane(num_ranks=1)
    with pytest.raises(LaneError, match=reason) as caught:
        lane.call("fail", how, ranks, timeout_s=1)
    assert caught.value.failure is failure
    assert detail in caught.value.details
    assert other.call("greet", "you", timeout_s=10) == ["hello you from 0 with nothing"]
    other.close()


def test_a_lane_whose_ranks_all_refuse_still_stands() -> None:
    lane = open_lane()
    with pytest.raises(LaneError, match="not on this machine") as caught:
        lane.call("fail", "refuse", (0, 1), timeout_s=10)
    assert caught.value.failure is Failure.REFUSED
    assert lane.call("fail", "refuse", (), timeout_s=10) == ["fine", "fine"]
    lane.close()


class NeverOpens:
    def __init__(self, greeting: str, rank: int, folder: str) -> None:
        raise RuntimeError("no GPU today")


def test_a_lane_that_does_not_start_says_why() -> None:
    with pytest.raises(LaneError, match="failed in start: RuntimeError: no GPU today"):
        open_lane(worker=NeverOpens)
