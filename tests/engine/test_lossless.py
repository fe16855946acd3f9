"""Speculative decoding gives what plain decoding gives: token by token when greedy, in distribution when sampling."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.engine.core import EngineCore
from fastverify.engine.kv_cache import KVCache
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.request import Request, SamplingParams
from fastverify.engine.target_runner import TargetRunner
from fastverify.models.weights import load_target
from tests.engine.scripted import ScriptedDrafter
from tests.engine.tiny import VOCAB, core_of, prompts, requests, run, settings
from tests.models.simple_attention import SimpleAttention

Models = dict[str, str]
TREE = {"draft_shape": "tree"}
PROMPTS = prompts(52)
DRAFTERS: dict[str, dict[str, Any]] = {
    **{f"eagle3 chain of {k}": {"num_draft_steps": k} for k in range(1, 9)},
    "eagle3 tree 2 wide": {**TREE, "num_draft_steps": 3, "top_k": 2, "num_proposed_drafts": 6},
    "eagle3 tree 4 wide": {**TREE, "num_draft_steps": 4, "top_k": 4, "num_proposed_drafts": 16},
    "eagle3 tree of one level": {**TREE, "num_draft_steps": 1, "top_k": 8, "num_proposed_drafts": 8},
    "eagle3 by local arg-max": {"num_draft_steps": 3, "draft_token_exchange": "local_argmax"},
    "ngram chain": {"drafter": "ngram", "num_draft_steps": 4},
    "ngram tree": {"drafter": "ngram", **TREE, "num_draft_steps": 4, "top_k": 3, "num_proposed_drafts": 9},
}


@pytest.fixture(scope="module")
def plain(models: Models) -> dict[str, list[int]]:
    """What plain decoding says, one request at a time."""
    core = core_of(settings(models, drafter="none"))
    outputs: dict[str, list[int]] = {}
    for request in requests(PROMPTS):
        outputs |= run(core, [request])
    return outputs


def test_plain_outputs_depend_on_the_prompt(plain: dict[str, list[int]]) -> None:
    assert all(len(tokens) == 24 for tokens in plain.values())
    assert len({tuple(tokens) for tokens in plain.values()}) > 40


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("changes", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_greedy_speculation_equals_plain(
    models: Models, plain: dict[str, list[int]], changes: dict[str, Any], batch: int
) -> None:
    core = core_of(settings(models, max_batch=batch, **changes))
    # Each drafter gets other prompts, so that all are used; every one on every drafter would take minutes.
    first = list(DRAFTERS.values()).index(changes) * 7 + batch
    chosen = [(first + step * 5) % len(PROMPTS) for step in range(4 + 2 * batch)]
    outputs = run(core, [requests(PROMPTS)[index] for index in chosen])
    assert outputs == {str(index): plain[str(index)] for index in chosen}
    assert core.stats().speculation["num_verify_passes"] > 0


def scripted_core(models: Models, plain: dict[str, list[int]], num_drafts: int, tree: bool, batch: int) -> EngineCore:
    """An engine whose drafter hides the true continuation among wrong drafts."""
    shape = {**TREE, "top_k": num_drafts} if tree else {}
    config = settings(models, drafter="ngram", max_batch=batch, num_draft_steps=num_drafts, **shape)
    model = load_target(Path(models["model"]), single_rank_communicator())
    cache = KVCache(3, batch, config.max_seq_len + num_drafts + 1, 2, 8, torch.float32)
    truth = {str(index): [*prompt, *plain[str(index)]] for index, prompt in enumerate(PROMPTS)}
    drafter = ScriptedDrafter(truth, num_drafts, tree=tree, seed=num_drafts)
    return EngineCore(config, TargetRunner(model, cache), drafter, PhaseClock([model.communicator]))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("num_drafts", "tree"), [(1, False), (3, False), (8, False), (3, True), (8, True)])
def test_accepted_runs_equal_plain(
    models: Models, plain: dict[str, list[int]], num_drafts: int, tree: bool, batch: int
) -> None:
    core = scripted_core(models, plain, num_drafts, tree, batch)
    chosen = range(num_drafts, num_drafts + 20)
    outputs = run(core, [requests(PROMPTS)[index] for index in chosen])
    assert outputs == {str(index): plain[str(index)] for index in chosen}
    speculation = core.stats().speculation
    assert speculation["num_correct_drafts"] > 0.3 * num_drafts * speculation["num_verify_passes"]


def test_a_stop_token_inside_an_accepted_run_cuts_it(models: Models, plain: dict[str, list[int]]) -> None:
    for index in range(6):
        tokens = plain[str(index)]
        stop = tokens[9]
        core = scripted_core(models, plain, 8, False, 1)
        sampling = SamplingParams(24, stop_token_ids=(stop,))
        core.submit(Request(str(index), PROMPTS[index], sampling))
        events = []
        while not core.is_idle:
            events += core.step()
        assert [token for event in events for token in event.token_ids] == tokens[: tokens.index(stop) + 1]
        assert events[-1].finish_reason == "stop"
        assert events[-1].stats is not None
        assert events[-1].stats.num_output_tokens == tokens.index(stop) + 1


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens_cuts_an_accepted_run(models: Models, plain: dict[str, list[int]], max_tokens: int) -> None:
    core = scripted_core(models, plain, 8, False, 4)
    outputs = run(core, requests(PROMPTS[:8], max_tokens))
    assert outputs == {str(index): plain[str(index)][:max_tokens] for index in range(8)}


# 99.99 % quantile of chi-square with 47 degrees of freedom (48 tokens).
CHI_SQUARE_LIMIT = 91.6
SAMPLERS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none"},
    "chain": {"num_draft_steps": 2},
    "tree": {**TREE, "num_draft_steps": 2, "top_k": 3, "num_proposed_drafts": 8},
    "ngram": {"drafter": "ngram", "num_draft_steps": 2, "ngram_max": 1},
}


@pytest.mark.parametrize("changes", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_sampled_tokens_follow_the_target_distribution(models: Models, changes: dict[str, Any]) -> None:
    """The second token, which the first verify pass decides, given each first token that is common enough."""
    prompt, temperature, num_draws = (3, 1, 4, 1, 5, 9, 2, 6), 2.0, 800
    core = core_of(settings(models, max_batch=48, **changes))
    todo = [
        Request(str(seed), prompt, SamplingParams(2, temperature=temperature, seed=seed)) for seed in range(num_draws)
    ]
    pairs = [tuple(tokens) for tokens in run(core, todo).values()]
    firsts, seconds = Counter(first for first, _ in pairs), Counter(second for _, second in pairs)
    expected_first = next_probs(core, prompt, temperature)
    expected_second = sum(
        expected_first[token] * next_probs(core, (*prompt, token), temperature) for token in range(VOCAB)
    )
    assert chi_square(firsts, expected_first, num_draws) < CHI_SQUARE_LIMIT
    assert chi_square(seconds, expected_second, num_draws) < CHI_SQUARE_LIMIT


@torch.inference_mode()
def next_probs(core: EngineCore, token_ids: tuple[int, ...], temperature: float) -> torch.Tensor:
    model = core._target.model
    hidden = model(torch.tensor(token_ids), torch.arange(len(token_ids)), SimpleAttention()).hidden_TD
    return (model.logits(hidden[-1:])[0] / temperature).softmax(-1)


def chi_square(counts: Counter[int], probs: torch.Tensor, total: int) -> float:
    """Tokens that are expected fewer than 5 times are counted together."""
    expected = probs * total
    rare = expected < 5
    observed = torch.tensor([float(counts[token]) for token in range(VOCAB)])
    cells = (observed[~rare] - expected[~rare]).square() / expected[~rare]
    rest = (observed[rare].sum() - expected[rare].sum()).square() / expected[rare].sum() if rare.any() else 0.0
    return float(cells.sum() + rest)


def test_samples_depend_on_the_seed_and_not_on_batch_mates(models: Models) -> None:
    config = settings(models, num_draft_steps=3)
    todo = requests(PROMPTS[:6], 12, temperature=1.0, seed=5)
    alone: dict[str, list[int]] = {}
    for request in todo:
        alone |= run(core_of(config), [request])
    assert run(core_of(config), todo) == alone
    assert run(core_of(config), requests(PROMPTS[:6], 12, temperature=1.0, seed=6)) != alone


def test_greedy_and_sampled_requests_share_a_batch(models: Models, plain: dict[str, list[int]]) -> None:
    core = core_of(settings(models, num_draft_steps=3))
    sampled = Request("sampled", PROMPTS[0], SamplingParams(24, temperature=1.0, seed=1))
    mixed = [*requests(PROMPTS[:3]), sampled]
    outputs = run(core, mixed)
    assert {key: tokens for key, tokens in outputs.items() if key != "sampled"} == {
        str(index): plain[str(index)] for index in range(3)
    }
    assert outputs["sampled"] == run(core_of(settings(models, num_draft_steps=3)), [sampled])["sampled"]
