"""Training attention against a plain loop over rows."""

import torch

from fastverify.training.attention import CachedAttention, CausalAttention, DraftStepAttention

NUM_SEQUENCES, LENGTH, HEADS, KV_HEADS, SIZE = 2, 7, 4, 2, 8


def random_rows(heads: int, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_SEQUENCES * length, heads, SIZE, generator=generator)


def rows_of(length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        random_rows(HEADS, length, seed),
        random_rows(KV_HEADS, length, seed + 1),
        random_rows(KV_HEADS, length, seed + 2),
    )


def attend_row(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [H, d] over keys and values [n, K, d]."""
    out = []
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        shares = (keys[:, kv_head] @ q[head] / SIZE**0.5).softmax(0)
        out.append(shares @ values[:, kv_head])
    return torch.stack(out)


def test_causal() -> None:
    q, k, v = rows_of(LENGTH, 0)
    out = CausalAttention(NUM_SEQUENCES).attend(0, q, k, v)
    for sequence in range(NUM_SEQUENCES):
        first = sequence * LENGTH
        for row in range(first, first + LENGTH):
            expected = attend_row(q[row], k[first : row + 1], v[first : row + 1])
            assert torch.allclose(out[row], expected, atol=1e-5)


def test_cache_continues_what_a_whole_pass_computes() -> None:
    q, k, v = (x.view(NUM_SEQUENCES, LENGTH, -1, SIZE) for x in rows_of(LENGTH, 3))
    whole = CausalAttention(NUM_SEQUENCES).attend(0, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
    whole = whole.view(NUM_SEQUENCES, LENGTH, HEADS, SIZE)
    cached = CachedAttention(NUM_SEQUENCES, LENGTH)
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7)):
        out = cached.attend(0, *(x[:, start:stop].flatten(0, 1) for x in (q, k, v)))
        cached.advance(stop - start)
        assert torch.allclose(out.view(NUM_SEQUENCES, -1, HEADS, SIZE), whole[:, start:stop], atol=1e-5)


def test_draft_steps_see_the_context_and_their_own_row() -> None:
    attention = DraftStepAttention(NUM_SEQUENCES)
    steps = [rows_of(LENGTH, 10 * step) for step in range(4)]
    for step, (q, k, v) in enumerate(steps):
        out = attention.attend(0, q, k, v)
        for row in range(NUM_SEQUENCES * LENGTH):
            first = row // LENGTH * LENGTH
            keys = torch.cat([steps[0][1][first : row + 1], *(s[1][row : row + 1] for s in steps[1 : step + 1])])
            values = torch.cat([steps[0][2][first : row + 1], *(s[2][row : row + 1] for s in steps[1 : step + 1])])
            assert torch.allclose(out[row], attend_row(q[row], keys, values), atol=1e-5)
