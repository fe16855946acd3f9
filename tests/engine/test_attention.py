"""Cached attention of one request, of equal batches and of packed chunks against plain arithmetic."""

import pytest
import torch

from fastverify.engine.attention import Segment, attend_over, tree_mask
from fastverify.engine.draft_tree import ancestor_rows
from fastverify.engine.kv_cache import KVCache
from fastverify.models.kernels import find_kernels

HEAD_DIM = 8
CHAIN_5 = tuple(range(4))
TREE_5 = (0, 0, 1, 1)


def reference(q_THd: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Row by row and head by head."""
    out = torch.empty_like(q_THd)
    group = q_THd.shape[1] // keys.shape[1]
    for row in range(q_THd.shape[0]):
        for head in range(q_THd.shape[1]):
            scores = keys[:, head // group] @ q_THd[row, head] / HEAD_DIM**0.5
            weights = scores.masked_fill(~visible[row], -torch.inf).softmax(0)
            out[row, head] = weights @ values[:, head // group]
    return out


def visible_rows(segment: Segment) -> torch.Tensor:
    columns, rows = torch.arange(segment.end), torch.arange(segment.num_rows)[:, None]
    if segment.tail_mask is None:
        return columns <= segment.start + rows
    visible = torch.ones(segment.num_rows, segment.end, dtype=torch.bool)
    visible[:, -segment.tail_mask.shape[1] :] = segment.tail_mask == 0
    return visible


def tail(num_rows: int, parents: tuple[int, ...]) -> torch.Tensor:
    mask = tree_mask(parents, num_rows)
    assert mask is not None
    return mask


# Two rows that see some of the three rows before them: a level of a growing draft tree.
LEVEL = torch.tensor([[0.0, -torch.inf, 0.0, 0.0, -torch.inf], [-torch.inf, 0.0, -torch.inf, -torch.inf, 0.0]])
CASES = {
    "one row": [Segment(2, 7, 1)],
    "chain": [Segment(1, 6, 5)],
    "from nothing": [Segment(0, 0, 4)],
    "long chunk": [Segment(0, 3, 40)],
    "tree": [Segment(1, 6, 5, tail(5, TREE_5))],
    "tree level": [Segment(0, 9, 2, LEVEL)],
    "batch of rows": [Segment(0, 3, 1), Segment(1, 9, 1), Segment(2, 5, 1)],
    "batch of chains": [Segment(0, 3, 4), Segment(2, 9, 4)],
    "batch of a tree and a chain": [Segment(2, 4, 5, tail(5, TREE_5)), Segment(0, 8, 5)],
    "chunks": [Segment(0, 0, 3), Segment(1, 4, 6), Segment(2, 2, 1)],
}


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("segments", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(5, 1), (4, 2), (3, 3)])
def test_new_rows_see_what_they_should(
    segments: list[Segment], num_heads: int, num_kv_heads: int, is_native: bool
) -> None:
    with torch.inference_mode(is_native):
        check_attention(segments, num_heads, num_kv_heads)


def check_attention(segments: list[Segment], num_heads: int, num_kv_heads: int) -> None:
    torch.manual_seed(0)
    cache = KVCache(2, 3, 64, num_kv_heads, HEAD_DIM, torch.float32)
    cache.both.normal_()
    before = cache.both.clone()
    num_rows = sum(segment.num_rows for segment in segments)
    # One buffer and strided views of it, as the model passes them.
    packed = torch.randn(num_rows, num_heads + 2 * num_kv_heads, HEAD_DIM)
    q_THd, k_TKd, v_TKd = packed.split((num_heads, num_kv_heads, num_kv_heads), 1)
    attention = attend_over(cache, segments)
    for layer in range(2):
        out = attention.attend(layer, q_THd, k_TKd, v_TKd)
        row = 0
        for segment in segments:
            rows = slice(row, row + segment.num_rows)
            keys = torch.cat((before[0, layer, segment.slot, : segment.start], k_TKd[rows]))
            values = torch.cat((before[1, layer, segment.slot, : segment.start], v_TKd[rows]))
            expected = reference(q_THd[rows], keys, values, visible_rows(segment))
            torch.testing.assert_close(out[rows], expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(cache.keys[layer, segment.slot, : segment.end], keys)
            row += segment.num_rows


def test_a_padded_tree_lets_padding_see_itself_only() -> None:
    mask = tail(4, (0,))
    assert (mask == 0).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
    ]
    assert tree_mask(CHAIN_5, 5) is None


@pytest.mark.skipif(find_kernels() is None, reason="this processor has no vector code")
@pytest.mark.parametrize("parents", [CHAIN_5, TREE_5])
@torch.inference_mode()
def test_a_verify_row_has_the_bits_of_plain_decoding(parents: tuple[int, ...]) -> None:
    """Rows of a tree, each against its own path decoded token by token."""
    torch.manual_seed(0)
    cache = KVCache(1, 1, 64, 2, HEAD_DIM, torch.float32)
    cache.both.normal_()
    q_THd, kv_2TKd = torch.randn(5, 6, HEAD_DIM), torch.randn(2, 5, 2, HEAD_DIM)
    verified = attend_over(cache, [Segment(0, 40, 5, tree_mask(parents, 5))]).attend(0, q_THd, *kv_2TKd)
    for row in range(5):
        for step, ancestor in enumerate(ancestor_rows(parents)[row]):
            one = slice(ancestor, ancestor + 1)
            plain = attend_over(cache, [Segment(0, 40 + step, 1)]).attend(0, q_THd[one], *kv_2TKd[:, one])
        assert torch.equal(plain[0], verified[row])
