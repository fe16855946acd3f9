"""Small random models, and ways to run requests through an engine that is stepped in this process. For tests only.

Weights are drawn wide, so that what follows depends on the whole context and logits are far from ties.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.communicator import single_rank_communicator
from fastverify.engine.config import EngineConfig
from fastverify.engine.core import EngineCore
from fastverify.engine.load import load_core
from fastverify.engine.request import Request, SamplingParams, TokenEvent
from fastverify.model_config import Eagle3Config, ModelConfig
from fastverify.models.eagle3 import Eagle3Head
from fastverify.models.export import save_draft, save_target
from fastverify.models.llama import LlamaForCausalLM
from fastverify.models.random_weights import initialize

torch.set_num_threads(1)

VOCAB = 48
TARGET = ModelConfig("LlamaForCausalLM", 32, 3, 4, 2, 8, 48, VOCAB, max_position_embeddings=512)
HEAD = Eagle3Config(ModelConfig("LlamaForCausalLM", 32, 1, 4, 2, 8, 48, VOCAB), VOCAB, 32, (0, 1, 3), "for tests")


def write_models(folder: Path, target: ModelConfig = TARGET, head: Eagle3Config = HEAD) -> dict[str, str]:
    """Random checkpoints in `folder`; the `model` and `draft` settings that name them."""
    communicator = single_rank_communicator()
    model = LlamaForCausalLM(target, communicator)
    initialize(model, 1, 0.3)
    save_target(model, folder / "target")
    draft = Eagle3Head(head, communicator, model.embed_tokens)
    initialize(draft, 2, 0.3)
    save_draft(draft, folder / "draft")
    return {"model": str(folder / "target"), "draft": str(folder / "draft")}


def settings(models: dict[str, str], **changes: Any) -> EngineConfig:
    """Settings of a small engine in this process."""
    defaults: dict[str, Any] = {"tp_size": 1, "max_seq_len": 128, "prefill_chunk": 16, "max_batch": 4}
    return EngineConfig(**{**models, **defaults, **changes})


def core_of(config: EngineConfig) -> EngineCore:
    """An engine in this process."""
    return load_core(config, single_rank_communicator())


def prompts(count: int, seed: int = 0, lengths: Sequence[int] = range(2, 40)) -> list[tuple[int, ...]]:
    """Random prompts of mixed lengths, some longer than one prefill chunk; the first half repeats itself."""
    draw = random.Random(seed)
    made = []
    for index in range(count):
        length = draw.choice(lengths)
        period = draw.randint(2, 5) if index < count // 2 else length
        pattern = [draw.randrange(VOCAB) for _ in range(period)]
        made.append(tuple(pattern[i % period] for i in range(length)))
    return made


def requests(
    texts: Iterable[tuple[int, ...]], max_tokens: int = 24, *, speculative: bool = True, **sampling: Any
) -> list[Request]:
    """One request per prompt; ids are "0", "1", ..."""
    params = SamplingParams(max_tokens, **sampling)
    return [Request(str(index), prompt, params, speculative) for index, prompt in enumerate(texts)]


def run(core: EngineCore, todo: Iterable[Request]) -> dict[str, list[int]]:
    """Output tokens of every request, all submitted at once."""
    for request in todo:
        core.submit(request)
    outputs: dict[str, list[int]] = {}
    for event in drain(core):
        outputs.setdefault(event.request_id, []).extend(event.token_ids)
    return outputs


def drain(core: EngineCore) -> list[TokenEvent]:
    """Every event until nothing is left to do."""
    events: list[TokenEvent] = []
    while not core.is_idle:
        events += core.step()
    return events
