"""A verify pass and plain decoding give the same bits, which is why greedy speculation is exact even at a near tie."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fastverify.engine.attention import Segment, attend_over, tree_mask
from fastverify.engine.draft_tree import ancestor_rows
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.target_runner import TargetRunner
from fastverify.models.kernels import find_kernels
from tests.engine.tiny import TARGET, VOCAB, core_of, settings, write_models

pytestmark = pytest.mark.skipif(find_kernels() is None, reason="this processor has no vector code")
PROMPT = [(7 * i) % VOCAB for i in range(37)]
CANDIDATES = [5, 9, 40, 2, 11, 30, 8]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TargetRunner:
    folder: Path = tmp_path_factory.mktemp("models")
    return core_of(settings(write_models(folder)))._target


def new_cache() -> KVCache:
    return KVCache(TARGET.num_layers, 1, 64, TARGET.num_kv_heads, TARGET.head_dim, torch.float32)


def logits(
    runner: TargetRunner, cache: KVCache, token_ids: Sequence[int], positions: Sequence[int], segment: Segment
) -> torch.Tensor:
    hidden = runner.model(torch.tensor(token_ids), torch.tensor(positions), attend_over(cache, [segment])).hidden_TD
    return runner.model.logits(hidden)


@pytest.mark.parametrize("parents", [tuple(range(6)), (0, 0, 1, 1, 2, 4)], ids=["chain", "tree"])
@torch.inference_mode()
def test_logits_of_a_verify_pass_are_those_of_plain_decoding(parents: tuple[int, ...], runner: TargetRunner) -> None:
    start, paths = len(PROMPT), ancestor_rows(parents)
    cache = new_cache()
    logits(runner, cache, PROMPT, range(start), Segment(0, 0, start))
    positions = [start + len(path) - 1 for path in paths]
    verified = logits(runner, cache, CANDIDATES, positions, Segment(0, start, 7, tree_mask(parents, 7)))
    for row, path in enumerate(paths):
        plain_cache = new_cache()
        for position, token_id in enumerate((*PROMPT, *(CANDIDATES[ancestor] for ancestor in path))):
            plain = logits(runner, plain_cache, [token_id], [position], Segment(0, position, 1))
        assert torch.equal(verified[row], plain[0])
