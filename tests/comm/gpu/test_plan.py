from dataclasses import replace

import pytest

from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol, find_fused_rule
from fastverify.comm.gpu.measure import find_finalists
from fastverify.comm.gpu.plan import is_hopeless, make_plan
from fastverify.comm.gpu.table import NORM, Accuracy, Op, Row

KB = 1024
LINES = Launch(Protocol.LINES, 16, 256)
SENTINEL = Launch(Protocol.SENTINEL, 64, 256)
TWO_SHOT = Launch(Protocol.SENTINEL, 32, 256, algorithm=Algorithm.TWO_SHOT)
LAUNCHES = {"push": SENTINEL, "push_two_shot": TWO_SHOT, "host": SENTINEL}


def row(
    backend: str,
    num_bytes: int,
    latency_us: float | None,
    launch: Launch | None = None,
    accuracy: Accuracy = "contract",
    op: Op = "all_reduce",
    separate_norm: bool = False,
    row_bytes: int = 0,
) -> Row:
    launch = launch or LAUNCHES.get(backend)
    return Row(backend, launch, op, num_bytes, "bfloat16", accuracy, row_bytes, separate_norm, True, latency_us)


def winner(rows: list[Row], num_bytes: int = 8 * KB, op: Op = "all_reduce") -> tuple[str, Launch | None]:
    pick = make_plan(rows).find(op, num_bytes)[0]
    return pick.backend, pick.launch


@pytest.mark.parametrize(
    ("one_us", "two_us", "peer_us", "expected"),
    [
        (3.0, 5.0, 9.0, "push"),
        (5.0, 3.0, 9.0, "push_two_shot"),
        (3.1, 3.0, 9.0, "push"),  # a tie goes to the simpler of ours
        (3.0, 5.0, 2.9, "nccl"),  # a library wins by more than 2 %
        (3.0, 5.0, 2.96, "push"),  # and not by less
        (3.1, 3.0, 3.02, "push_two_shot"),  # what is simple must not lose to a library where the other would not
    ],
)
def test_the_winner_of_one_size(one_us: float, two_us: float, peer_us: float, expected: str) -> None:
    rows = [row("push", 8 * KB, one_us), row("push_two_shot", 8 * KB, two_us), row("nccl", 8 * KB, peer_us)]
    assert winner(rows)[0] == expected


def test_the_fastest_launch_of_a_backend_counts() -> None:
    rows = [row("push", 8 * KB, 3.0), row("push", 8 * KB, 2.9, LINES), row("push", 8 * KB, None)]
    assert winner(rows) == ("push", LINES)


def test_what_breaks_the_contract_or_is_wrong_does_not_win() -> None:
    rows = [
        row("vllm", 8 * KB, 1.0, accuracy="wrong"),
        row("nccl", 8 * KB, 2.0, accuracy="rounded"),
        row("push", 8 * KB, 9.0),
    ]
    assert [pick.backend for pick in make_plan(rows).find("all_reduce", 8 * KB)] == ["push", "nccl"]
    assert winner(rows[:2])[0] == "nccl", "it is better than nothing"
    assert make_plan(rows[:1]).find("all_reduce", 8 * KB) == ()


def test_sizes_between_are_served_as_the_larger_and_beyond_as_the_largest() -> None:
    rows = [row("push", 8 * KB, 2.0, LINES), row("push", 64 * KB, 3.0), row("nccl", 512 * KB, 9.0)]
    plan = make_plan(rows)
    found = {size: plan.find("all_reduce", size)[0] for size in (16, 8 * KB, 8 * KB + 2, 65 * KB, 1 << 30)}
    assert [(pick.backend, pick.launch) for pick in found.values()] == [
        ("push", LINES),
        ("push", LINES),
        ("push", SENTINEL),
        ("nccl", None),
        ("nccl", None),
    ]
    assert plan.find("all_gather", 8 * KB) == ()
    assert plan.winners("all_reduce") == ("push", "nccl")


def curve(backend: str, latencies_us: list[float], accuracy: Accuracy = "contract") -> list[Row]:
    return [row(backend, 4 * KB << index, us, accuracy=accuracy) for index, us in enumerate(latencies_us)]


@pytest.mark.parametrize(
    ("middle_us", "expected"), [(2.9, ["push", "push", "push"]), (2.0, ["push", "push_two_shot", "push"])]
)
def test_a_lone_winner_gives_way_unless_it_wins_clearly(middle_us: float, expected: list[str]) -> None:
    plan = make_plan([*curve("push", [2.0, 3.0, 4.0]), *curve("push_two_shot", [9.0, middle_us, 9.0])])
    assert [step.picks[0].backend for step in plan.steps["all_reduce"]] == expected


def test_smoothing_does_not_trade_the_contract_for_calm() -> None:
    rows = [
        *curve("nccl", [2.0, 3.0, 4.0], accuracy="rounded"),
        row("push", 8 * KB, 3.1),
    ]
    assert [step.picks[0].backend for step in make_plan(rows).steps["all_reduce"]] == ["nccl", "push", "nccl"]


def test_our_kernels_get_their_best_launch_at_every_size_won_or_not() -> None:
    rows = [
        *(row("push", 8 * KB, us, launch) for us, launch in ((2.0, LINES), (3.0, SENTINEL))),
        row("push", 64 * KB, 9.0),
        row("push_two_shot", 64 * KB, 7.0),
        row("nccl", 64 * KB, 5.0),
        row("host", 8 * KB, 4.0),
    ]
    plan = make_plan(rows)
    assert [(rule.max_bytes, rule.launch) for rule in plan.launch_rules("push", "all_reduce")] == [
        (8 * KB, LINES),
        (64 * KB, TWO_SHOT),
    ]
    assert [rule.max_bytes for rule in plan.launch_rules("host", "all_reduce")] == [8 * KB]
    assert plan.launch_rules("push", "all_gather") == ()


def test_a_norm_beside_the_sum_wins_where_it_is_clearly_faster() -> None:
    op: Op = "all_reduce_residual_rmsnorm"
    for separate_us, expected in ((9.0, False), (4.9, False), (4.0, True)):
        rows = [row("push", 8 * KB, 5.0, op=op), row("push", 8 * KB, separate_us, LINES, op=op, separate_norm=True)]
        plan = make_plan(rows)
        assert plan.find(op, 8 * KB)[0].separate_norm == expected
        assert [rule.launch for rule in plan.launch_rules("push", op)] == [SENTINEL], "the fused kernel's launch"


def test_who_lost_badly_on_both_sides_is_not_tried_between() -> None:
    rows = [*curve("push", [2.0, 3.0, 4.0]), *curve("host", [5.0, 9.5, 13.0]), *curve("vllm", [50.0, 50.0, 5.0])]
    assert is_hopeless("host", 12 * KB, rows, "all_reduce")
    assert not is_hopeless("host", 6 * KB, rows, "all_reduce"), "it was within a factor of three at 4 KB"
    assert not is_hopeless("vllm", 12 * KB, rows, "all_reduce")
    assert not is_hopeless("host", 32 * KB, rows, "all_reduce"), "nothing larger was measured"
    assert is_hopeless("vllm", 8 * KB, rows, "all_reduce"), "this very size was measured"
    assert is_hopeless("mscclpp", 12 * KB, rows, "all_reduce"), "it could run neither"


def test_more_replays_go_to_the_close_ones_and_to_the_best_of_each_backend() -> None:
    latencies_us = [("push", 2.0 + 0.1 * index) for index in range(8)] + [("nccl", 5.0), ("nccl", 5.5), ("host", 7.0)]
    assert find_finalists(latencies_us) == {0, 1, 2, 3, 4, 5, 8}
    assert find_finalists([]) == set()


def norm(num_rows: int, row_bytes: int, us: float, launch: Launch = SENTINEL, *, separate: bool = False) -> Row:
    return row("push", num_rows * row_bytes, us, launch, op=NORM, separate_norm=separate, row_bytes=row_bytes)


def test_norms_go_by_rows_of_the_nearest_size() -> None:
    """128 KB are 16 narrow rows or 9 wide ones; the launch that is best for few rows is wrong for many."""
    narrow, wide = 8192, 14_336
    few, many = replace(SENTINEL, blocks=128, cluster=8), replace(SENTINEL, blocks=128, cluster=2)
    rows = [
        *(norm(4, size, us, few) for size, us in ((narrow, 3.5), (wide, 3.6))),
        *(norm(16, size, us, many) for size, us in ((narrow, 3.9), (wide, 4.2))),
        *(norm(64, size, us, many) for size, us in ((narrow, 5.0), (wide, 9.9))),
        norm(64, wide, 9.0, many, separate=True),
    ]
    plan = make_plan(rows)
    found = {
        (num_rows, row_bytes): plan.find(NORM, num_rows * row_bytes, row_bytes)[0]
        for num_rows in (1, 4, 5, 16, 17, 64, 1000)
        for row_bytes in (1024, narrow, wide, 1 << 20)
    }
    assert all(pick.launch == (few if num_rows <= 4 else many) for (num_rows, _), pick in found.items())
    separate = {key for key, pick in found.items() if pick.separate_norm}
    assert separate == {(num_rows, row_bytes) for num_rows in (17, 64, 1000) for row_bytes in (wide, 1 << 20)}
    rules = plan.launch_rules("push", NORM)
    for (num_rows, row_bytes), pick in found.items():
        assert find_fused_rule(rules, num_rows, row_bytes) == pick.launch


def test_the_best_of_a_few_replays_does_not_beat_a_median() -> None:
    lucky = replace(row("push", 8 * KB, 1.9, LINES), is_quick=True)
    rows = [lucky, row("push", 8 * KB, 2.0), replace(row("host", 8 * KB, 9.0), is_quick=True)]
    assert winner(rows) == ("push", SENTINEL)
    plan = make_plan(rows)
    assert [rule.launch for rule in plan.launch_rules("host", "all_reduce")] == [SENTINEL], "it has nothing else"
