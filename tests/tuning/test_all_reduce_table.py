import pytest

from fastverify.tuning.all_reduce_table import AllReduceTable


def row(backend: str = "shm", num_bytes: int = 1024, median_us: float | None = 4.0, **changes: object) -> dict:
    values = {"world_size": 2, "dtype": "float32", "fused": False, "iqr_us": 0.1, "correct": True, "reason": None}
    return {"backend": backend, "num_bytes": num_bytes, "median_us": median_us} | values | changes


@pytest.fixture
def table() -> AllReduceTable:
    return AllReduceTable.from_records(
        [
            row(num_bytes=4096, median_us=8.0),
            row(num_bytes=1024, median_us=4.0),
            row(num_bytes=16384, median_us=9.0, correct=False),
            row("nccl", median_us=None, correct=None, reason="no GPU"),
        ]
    )


@pytest.mark.parametrize(
    ("num_bytes", "us"), [(16, 4.0), (1024, 4.0), (2560, 6.0), (4096, 8.0), (10240, 8.5), (28672, 10.0)]
)
def test_linear_between_flat_below_and_going_on_above(table: AllReduceTable, num_bytes: int, us: float) -> None:
    latency = table.latency_us("shm", num_bytes, fused=False)
    assert latency is not None
    assert latency.mid == pytest.approx(us)
    assert latency.low < us < latency.high


def test_what_was_not_measured_is_none_and_says_why(table: AllReduceTable) -> None:
    assert table.latency_us("shm", 1024, fused=True) is None
    assert table.latency_us("nccl", 1024, fused=False) is None
    assert table.backends == ("shm",)
    assert table.reason_against("nccl") == "no GPU"
    assert table.reason_against("shm") is None


def test_wrong_sums_are_remembered_by_size(table: AllReduceTable) -> None:
    assert table.wrong_sizes("shm") == (16384,)
    assert table.checked("shm")
    assert not table.checked("nccl")
