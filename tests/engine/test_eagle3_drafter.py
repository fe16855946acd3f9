"""What the drafter proposes from its incremental cache equals what the formulas give from scratch.

A scripted drafter decides what is accepted, so that runs of every length and shape pass through extend.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.engine.core import EngineCore
from fastverify.engine.draft_tree import DraftTree, chain, keep_most_probable
from fastverify.engine.drafters.eagle3 import Eagle3Drafter
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.target_runner import TargetRunner
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.weights import load_draft, load_target
from tests.engine.scripted import ScriptedDrafter
from tests.engine.tiny import HEAD, core_of, prompts, requests, run, settings
from tests.models.simple_attention import SimpleAttention

PROMPTS = prompts(8, seed=4, lengths=(2, 3, 9, 16, 17, 35))
MAX_TOKENS = 14


def load(models: dict[str, str]) -> tuple[LlamaForCausalLM, Eagle3Head]:
    communicator = single_rank_communicator()
    target = load_target(Path(models["model"]), communicator, capture_layers=HEAD.capture_layers)
    return target, load_draft(Path(models["draft"]), target, communicator)


class FromScratch:
    """Head states of a context, recomputed with the simplest attention."""

    def __init__(self, target: LlamaForCausalLM, head: Eagle3Head, token_ids: tuple[int, ...]) -> None:
        context = torch.tensor(token_ids)
        aux = target(context, torch.arange(len(context)), SimpleAttention()).aux_TAD
        assert aux is not None
        self.head, self.context = head, context
        self.fused = head.fuse(aux)[:-1]

    def state_after(self, path: tuple[int, ...]) -> torch.Tensor:
        """State [1, D] that predicts the token after the context and `path`."""
        attention = SimpleAttention()
        hidden = self.head(self.context[1:], self.fused, torch.arange(len(self.fused)), attention)[-1:]
        for step, token_id in enumerate(path):
            position = torch.tensor([len(self.fused) + step])
            hidden = self.head(torch.tensor([token_id]), hidden, position, attention)
        return hidden

    def chain(self, num_drafts: int) -> DraftTree:
        path: tuple[int, ...] = ()
        for _ in range(num_drafts):
            path = (*path, int(self.head.greedy(self.state_after(path))))
        return chain(path)

    def tree(self, depth: int, top_k: int, count: int) -> DraftTree:
        token_ids: list[int] = []
        parents: list[int] = []
        joint: list[float] = []
        frontier: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        for _ in range(depth):
            level = []
            for row, path in frontier:
                log_probs, ids = self.head.top_k(self.state_after(path), top_k)
                for log_prob, token_id in zip(log_probs[0].tolist(), ids[0].tolist(), strict=True):
                    token_ids.append(token_id)
                    parents.append(row)
                    joint.append(log_prob + (joint[row - 1] if row else 0.0))
                    level.append((len(token_ids), (*path, token_id)))
            frontier = sorted(level, key=lambda node: -joint[node[0] - 1])[:top_k]
        return keep_most_probable(token_ids, parents, joint, count)


SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_draft_steps": 4},
    "chain by local arg-max": {"num_draft_steps": 4, "draft_token_exchange": "local_argmax"},
    "tree": {"draft_shape": "tree", "num_draft_steps": 3, "top_k": 3, "num_proposed_drafts": 8},
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("accept_tree", [False, True])
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@torch.inference_mode()
def test_proposals_equal_those_from_scratch(
    models: dict[str, str], changes: dict[str, Any], accept_tree: bool, batch: int
) -> None:
    config = settings(models, max_batch=batch, **changes)
    todo = requests(PROMPTS, MAX_TOKENS)
    plain = run(core_of(settings(models, drafter="none")), todo)
    truth = {str(index): [*prompt, *plain[str(index)]] for index, prompt in enumerate(PROMPTS)}
    target, head = load(models)
    clock = PhaseClock([target.communicator])
    inner = Eagle3Drafter(head, config, clock, torch.float32)
    drafter = ScriptedDrafter(truth, config.num_verify_tokens - 1, tree=accept_tree, seed=1, inner=inner)
    cache = KVCache(3, batch, 160, 2, 8, torch.float32)
    assert run(EngineCore(config, TargetRunner(target, cache), drafter, clock), todo) == plain
    assert any(len(b) - len(a) > 2 for (a, _), (b, _) in pairwise(drafter.inner_proposals))
    for token_ids, proposal in drafter.inner_proposals:
        scratch = FromScratch(target, head, token_ids)
        if config.draft_shape == "chain":
            assert proposal == scratch.chain(config.num_draft_steps)
        else:
            assert proposal == scratch.tree(3, 3, 8)
