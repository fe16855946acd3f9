import torch
from hypothesis import given
from hypothesis import strategies as st

from fastverify.engine.kv_cache import KVCache


@st.composite
def compactions(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """Slot, cached rows, and an ascending path through the rows behind them."""
    num_rows = draw(st.integers(1, 8))
    path = sorted(draw(st.sets(st.integers(1, num_rows - 1)))) if num_rows > 1 else []
    return draw(st.integers(0, 2)), draw(st.integers(0, 4)), [0, *path]


@given(compactions())
def test_an_accepted_path_becomes_consecutive_and_nothing_else_moves(case: tuple[int, int, list[int]]) -> None:
    slot, start, path = case
    cache = KVCache(2, 3, 12, 2, 4, torch.float32)
    cache.both.copy_(torch.arange(cache.both.numel()).view_as(cache.both))
    before = cache.both.clone()
    cache.keep_path(slot, start, path)
    end = start + len(path)
    for layer in range(2):
        for kind in range(2):
            after, old = cache.both[kind, layer], before[kind, layer]
            assert torch.equal(after[slot, start:end], old[slot, [start + row for row in path]])
            assert torch.equal(after[slot, :start], old[slot, :start])
            others = [other for other in range(3) if other != slot]
            assert torch.equal(after[others], old[others])
