"""Every head and row of the full model lies on exactly the ranks it should, for any world size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.models.sharding import local_size, local_span, shard_heads


@given(st.integers(1, 300), st.integers(1, 9))
def test_spans_cover_everything_once(full_size: int, world_size: int) -> None:
    spans = [local_span(full_size, rank, world_size) for rank in range(world_size)]
    assert [row for span in spans for row in range(span.start, span.stop)] == list(range(full_size))
    assert max(span.size for span in spans) <= local_size(full_size, world_size)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 9))
def test_each_query_head_sits_beside_its_kv_head(num_kv_heads: int, group: int, world_size: int) -> None:
    num_heads = num_kv_heads * group
    seen: list[int] = []
    for rank in range(world_size):
        shard = shard_heads(num_heads, num_kv_heads, rank, world_size)
        assert shard.num_heads % shard.num_kv_heads == 0
        local_group = shard.num_heads // shard.num_kv_heads
        for place, head in enumerate(range(shard.heads.start, shard.heads.stop)):
            assert shard.kv_heads.start + place // local_group == head // group
            seen.append(head)
    assert sorted(seen) == list(range(num_heads))


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "world_size", "expected"),
    [(10, 2, 2, (5, 1)), (10, 2, 4, (3, 1)), (9, 3, 2, (6, 2)), (64, 8, 8, (8, 1)), (32, 8, 16, (2, 1))],
)
def test_allocated_heads(num_heads: int, num_kv_heads: int, world_size: int, expected: tuple[int, int]) -> None:
    shard = shard_heads(num_heads, num_kv_heads, 0, world_size)
    assert (shard.num_heads, shard.num_kv_heads) == expected
