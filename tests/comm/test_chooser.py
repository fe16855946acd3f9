import pytest

from fastverify.comm.chooser import Timing, find_crossover, find_thresholds

SIZES = (2048, 8192, 32768)


@pytest.mark.parametrize(
    ("other_us", "expected"),
    [
        ([3, 6, 25], None),
        ([3, 4, 15], 8192),
        ([1, 4, 15], 2048),
        # One win below a loss is noise or of no use: the rule is one threshold.
        ([1, 6, 15], 32768),
        # A tie goes to the simple way.
        ([2, 5, 19.5], None),
    ],
)
def test_crossover_is_where_the_other_way_wins_from_then_on(other_us: list[float], expected: int | None) -> None:
    simple_us = dict(zip(SIZES, [2.0, 5.0, 20.0], strict=True))
    assert find_crossover(simple_us, dict(zip(SIZES, other_us, strict=True))) == expected


def timings(one_us: list[float], two_us: list[float], streamed: bool) -> list[Timing]:
    return [
        Timing("shm", algorithm, streamed, num_bytes, latency_us)
        for algorithm, latencies_us in (("one_shot", one_us), ("two_shot", two_us))
        for num_bytes, latency_us in zip(SIZES, latencies_us, strict=True)
    ]


def test_one_or_two_rounds_is_decided_for_the_way_of_writing_that_won() -> None:
    cached = timings([3, 9, 40], [4, 6, 20], streamed=False)
    assert find_thresholds(cached) == (8192, None)
    # Streaming wins from 8 KB on, and streamed one round beats streamed two rounds there.
    streamed = timings([4, 3, 8], [5, 4, 9], streamed=True)
    assert find_thresholds(cached + streamed) == (None, 8192)
    # Streaming wins at the largest size only, by two rounds; below, cached two rounds win from 8 KB.
    streamed = timings([9, 9, 12], [9, 9, 10], streamed=True)
    assert find_thresholds(cached + streamed) == (8192, 32768)
