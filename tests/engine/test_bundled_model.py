"""The bundled target and its head, on held-out prompts: same text as plain decoding, and drafts that are accepted."""

from typing import Any

import pytest

from fastverify import bundled
from fastverify.engine.config import EngineConfig
from fastverify.engine.request import Request, SamplingParams
from fastverify.engine.tokenizer import Tokenizer
from tests.engine.tiny import core_of, run

NUM_TOKENS = 24
CASES: dict[str, dict[str, Any]] = {
    "chain": {"num_draft_steps": 4},
    "tree": {"draft_shape": "tree", "num_draft_steps": 4, "top_k": 3, "num_proposed_drafts": 8},
}


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.load(bundled.target_dir())
    texts = [prompt.text for domain in bundled.prompt_domains() for prompt in bundled.prompts(domain)[:3]]
    return [tuple(tokenizer.encode(text)) for text in texts]


def decode(prompts: list[tuple[int, ...]], **changes: Any) -> tuple[dict[str, list[int]], float]:
    """Outputs, and the acceptance length over all prompts."""
    core = core_of(EngineConfig(tp_size=1, max_batch=4, **changes))
    sampling = SamplingParams(NUM_TOKENS, ignore_eos=True)
    outputs = run(core, [Request(str(index), prompt, sampling) for index, prompt in enumerate(prompts)])
    speculation = core.stats().speculation
    num_passes = speculation["num_verify_passes"]
    return outputs, 1 + speculation["num_correct_drafts"] / num_passes if num_passes else 1.0


@pytest.mark.slow
def test_trained_drafts_are_accepted_and_change_nothing(prompts: list[tuple[int, ...]]) -> None:
    plain, _ = decode(prompts, drafter="none")
    accept_lengths = {}
    for name, changes in CASES.items():
        outputs, accept_lengths[name] = decode(prompts, **changes)
        assert outputs == plain, name
    assert accept_lengths["chain"] > 2.5
    # Twice the rows, spent on the most probable branches, must find more than the chain does.
    assert accept_lengths["tree"] > accept_lengths["chain"]
