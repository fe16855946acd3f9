import pytest

from fastverify.comm.chooser import Timing, find_crossover


def timings(one_shot_us: list[float], two_shot_us: list[float]) -> list[Timing]:
    return [
        Timing("shm", algorithm, 8192 * 4**index, latency_us)
        for algorithm, latencies_us in (("one_shot", one_shot_us), ("two_shot", two_shot_us))
        for index, latency_us in enumerate(latencies_us)
    ] + [Timing("gloo", "all_reduce", 8192, 300.0)]


@pytest.mark.parametrize(
    ("one_shot_us", "two_shot_us", "expected"),
    [
        ([2, 5, 20], [3, 6, 25], None),
        ([2, 5, 20], [3, 4, 15], 32768),
        ([2, 5, 20], [1, 4, 15], 8192),
        # A single win below a loss is noise or of no use: the rule is one threshold.
        ([2, 5, 20], [1, 6, 15], 131072),
    ],
)
def test_crossover_is_where_two_rounds_win_from_then_on(
    one_shot_us: list[float], two_shot_us: list[float], expected: int | None
) -> None:
    assert find_crossover(timings(one_shot_us, two_shot_us)) == expected
