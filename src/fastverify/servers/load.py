"""A closed-loop load: fixed prompts, greedy, a fixed output length, so many requests at a time, arms interleaved.

Every request is a raw `Sample`. Arms alternate in blocks of all prompts (plain, speculative, speculative, plain, ...),
so that a drift of the machine hits both; a block is what one pair of metrics pages is read around.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from fastverify.errors import ConfigError, ServerError
from fastverify.servers.completion import AnswerError, complete
from fastverify.servers.failures import answer_failure, request_failure
from fastverify.servers.measurement import Sample
from fastverify.servers.server import Arm, Prompt, RunningServer

OnSample = Callable[[Sample], None]


@dataclass(frozen=True)
class Load:
    """What is sent. Raises ConfigError for a load that cannot be measured."""

    prompts: tuple[Prompt, ...]
    num_tokens: int
    repeats: int
    arms: tuple[Arm, ...] = ("plain", "speculative")
    concurrency: int = 1
    stream: bool = False
    """Needed for servers that do not time their own tokens."""
    request_timeout_s: float = 120.0
    min_load_s: float = 0.0
    """Repeats follow until the load has lasted this long: a fast server needs more samples for the same noise."""

    def __post_init__(self) -> None:
        if not self.prompts or not self.arms:
            raise ConfigError("a load needs at least one prompt and one arm, got none.")
        if len({prompt.prompt_id for prompt in self.prompts}) != len(self.prompts):
            raise ConfigError("every prompt of a load needs an id of its own, got a repeated one.")
        if self.num_tokens < 2:
            raise ConfigError(f"a decode speed needs at least 2 tokens per request, got num_tokens {self.num_tokens}.")
        if self.repeats < 1 or self.concurrency < 1:
            raise ConfigError(f"repeats and concurrency are at least 1, got {self.repeats} and {self.concurrency}.")


@dataclass(frozen=True)
class Block:
    """All prompts once, in one arm."""

    arm: Arm
    repeat: int


def interleaved_blocks(load: Load) -> Iterator[Block]:
    """Blocks in the order that they run: every repeat holds each arm once, every other repeat in reverse.

    Lazy: whether another repeat follows depends on the time since the first block was asked for.
    """
    end_s = time.monotonic() + load.min_load_s
    for repeat in itertools.count():
        if repeat >= load.repeats and time.monotonic() >= end_s:
            return
        arms = load.arms if repeat % 2 == 0 else load.arms[::-1]
        for arm in arms:
            yield Block(arm, repeat)


def run_block(server: RunningServer, load: Load, block: Block, on_sample: OnSample | None = None) -> list[Sample]:
    """Samples of one block in prompt order.

    Raises: ServerCrashError, ServerHangError, or ServerError for an answer that is no sample.
    """
    limits = httpx.Limits(max_connections=load.concurrency)
    client = httpx.Client(base_url=server.url, timeout=load.request_timeout_s, limits=limits, trust_env=False)
    pool = ThreadPoolExecutor(load.concurrency, thread_name_prefix="load")

    is_over = threading.Event()

    def send(prompt: Prompt) -> Sample:
        if is_over.is_set():
            raise ServerError(f"prompt {prompt.prompt_id!r} was not sent: an earlier one of its block failed.")
        try:
            return _send(server, client, load, block, prompt)
        except httpx.TransportError as error:
            if is_over.is_set():
                raise
            raise request_failure(server, _name(prompt, block), error) from error

    samples = []
    try:
        for sample in pool.map(send, load.prompts):
            samples.append(sample)
            if on_sample is not None:
                on_sample(sample)
    finally:
        # A failed request ends the block: waiting requests are dropped, running ones lose their connection.
        is_over.set()
        pool.shutdown(wait=False, cancel_futures=True)
        client.close()
        pool.shutdown(wait=True)
    return samples


def _send(server: RunningServer, client: httpx.Client, load: Load, block: Block, prompt: Prompt) -> Sample:
    what = _name(prompt, block)
    body = {
        "prompt": prompt.text,
        "max_tokens": load.num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        **server.request_fields(block.arm),
    }
    try:
        completion = complete(client, body, stream=load.stream)
    except AnswerError as error:
        raise answer_failure(server, what, error.status, error.text) from error
    if completion.num_tokens != load.num_tokens:
        raise ServerError(
            f"{what}: with ignore_eos every answer has {load.num_tokens} tokens, got {completion.num_tokens}."
        )
    if completion.decode_s <= 0.0:
        raise ServerError(f"{what}: a decode time is above 0 s, got {completion.decode_s}. All tokens came at once.")
    return Sample(
        arm=block.arm,
        prompt_id=prompt.prompt_id,
        repeat=block.repeat,
        num_tokens=completion.num_tokens,
        token_ids=completion.token_ids,
        text=completion.text,
        ttft_s=completion.ttft_s,
        decode_s=completion.decode_s,
        tok_s=completion.num_decode_tokens / completion.decode_s,
        timing_source=completion.timing_source,
        accept_length=completion.accept_length,
    )


def _name(prompt: Prompt, block: Block) -> str:
    return f"prompt {prompt.prompt_id!r}, arm {block.arm}"
