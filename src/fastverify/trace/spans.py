"""What the name of an annotation says about a pass: its kind, its batch and its rows.

One table, one row per spelling, with the program that writes it. A name that no row matches is not a pass; a name that
matches with nothing to do (no requests) is not one either. It knows no time and no kernel.
Rows are tokens of one forward: a verify pass has one row per candidate and one for the current token, per request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class PassKind(StrEnum):
    """What a forward pass is for; OTHER is a range whose name says only where it begins and ends."""

    PREFILL = "prefill"
    PLAIN = "plain"
    DRAFT = "draft"
    VERIFY = "verify"
    MIXED = "mixed"
    OTHER = "other"


TARGET_KINDS = frozenset({PassKind.PREFILL, PassKind.PLAIN, PassKind.VERIFY, PassKind.MIXED})


@dataclass(frozen=True)
class SpanMeaning:
    """A parsed name. `batch` and `rows` are None where the name does not say.

    `phase` tells apart passes of one kind: "draft" and "draft_extend". `has_tail` marks ranges that end before sampling
    and drafting, so that the work up to the next range belongs to the same cycle.
    """

    kind: PassKind
    program: str
    batch: int | None = None
    rows: int | None = None
    phase: str = ""
    has_tail: bool = False


def parse_span(name: str) -> SpanMeaning | None:
    """Meaning of an annotation, None when it is not a pass."""
    for pattern, parse in _SPELLINGS:
        match = pattern.match(name)
        if match:
            return parse(match)
    return None


def parse_scope(name: str) -> str | None:
    """`draft`, `sample`, ... of vLLM's `gpu_model_runner: <scope>`, None for other names."""
    match = re.match(r"gpu_model_runner: (\w+)", name)
    return match[1] if match else None


def _tokens_kind(context: int, generation: int, generation_tokens: int) -> PassKind:
    if context and generation:
        return PassKind.MIXED
    if context:
        return PassKind.PREFILL
    return PassKind.VERIFY if generation_tokens > generation else PassKind.PLAIN


def _vllm(match: re.Match[str]) -> SpanMeaning | None:
    context, generation = int(match["context"]), int(match["generation"])
    if context + generation == 0:
        return None
    context_tokens, generation_tokens = (
        int(re.sub(r"^\D*(\d+).*", r"\1", match[part])) for part in ("context_tokens", "generation_tokens")
    )
    kind = _tokens_kind(context, generation, generation_tokens)
    return SpanMeaning(kind, "vLLM", context + generation, context_tokens + generation_tokens, has_tail=True)


def _vllm_cached(match: re.Match[str]) -> SpanMeaning | None:
    new, cached = int(match["new"]), int(match["cached"])
    if new + cached == 0:
        return None
    return SpanMeaning(_tokens_kind(new, cached, cached), "vLLM", new + cached, has_tail=True)


_SGLANG_MODES = {
    "EXTEND": (PassKind.PREFILL, ""),
    "DECODE": (PassKind.PLAIN, ""),
    "MIXED": (PassKind.MIXED, ""),
    "TARGET_VERIFY": (PassKind.VERIFY, ""),
    "DRAFT_EXTEND": (PassKind.DRAFT, "draft_extend"),
    "DRAFT_EXTEND_V2": (PassKind.DRAFT, "draft_extend"),
}


def _sglang_step(match: re.Match[str]) -> SpanMeaning | None:
    kind, phase = _SGLANG_MODES.get(match["mode"], (None, ""))
    if kind is None:
        return None
    batch, tokens = _field(match["fields"], "bs"), _field(match["fields"], "toks")
    generated = _field(match["fields"], "g_sq")
    if match["mode"] == "DECODE" and generated and batch and generated > batch:
        kind, tokens = PassKind.VERIFY, generated
    elif match["mode"] == "DECODE" and tokens is None:
        tokens = batch
    if match["draft"]:
        kind, phase = PassKind.DRAFT, phase or "draft"
    return SpanMeaning(kind, "SGLang", batch, tokens, phase)


def _atom(match: re.Match[str]) -> SpanMeaning:
    batch, tokens = _field(match["fields"], "bs"), _field(match["fields"], "tok")
    if match["mode"] == "prefill":
        return SpanMeaning(PassKind.PREFILL, "ATOM", batch, tokens)
    kind = PassKind.VERIFY if _field(match["fields"], "spec") else PassKind.PLAIN
    return SpanMeaning(kind, "ATOM", batch, tokens)


def _field(fields: str, key: str) -> int | None:
    match = re.search(rf"\b{key}=(\d+)", fields)
    return int(match[1]) if match else None


def _tensorrt_llm(match: re.Match[str]) -> SpanMeaning | None:
    context, generation = int(match["context"]), int(match["generation"])
    if context + generation == 0:
        return None
    # The name does not count the tokens of generation requests, so a verify pass of TensorRT-LLM reads as plain here.
    kind = _tokens_kind(context, generation, generation)
    rows = None if kind is PassKind.PLAIN else int(match["tokens"]) + generation
    return SpanMeaning(kind, "TensorRT-LLM", context + generation, rows)


_FASTVERIFY_PHASES = {
    "prefill": (PassKind.PREFILL, ""),
    "plain": (PassKind.PLAIN, ""),
    "verify": (PassKind.VERIFY, ""),
    "draft": (PassKind.DRAFT, "draft"),
    "extend": (PassKind.DRAFT, "draft_extend"),
}


def _fastverify(match: re.Match[str]) -> SpanMeaning:
    kind, phase = _FASTVERIFY_PHASES[match["phase"]]
    return SpanMeaning(kind, "fastverify", phase=phase)


def _fixed(meaning: SpanMeaning) -> Callable[[re.Match[str]], SpanMeaning]:
    return lambda _match: replace(meaning)


_Parse = Callable[[re.Match[str]], SpanMeaning | None]
_SPELLINGS: tuple[tuple[re.Pattern[str], _Parse], ...] = tuple(
    (re.compile(pattern), parse)
    for pattern, parse in (
        # Source: vLLM gpu_model_runner.py and gpu/model_runner.py, and traces of 0.11, 0.24 and 0.32.
        (
            r"execute_(?:\d+_)?context_(?P<context>\d+)\((?P<context_tokens>[^)]*\d[^)]*)\)"
            r"_generation_(?P<generation>\d+)\((?P<generation_tokens>[^)]*\d[^)]*)\)",
            _vllm,
        ),
        # Source: vLLM pull request 22496 (2025-08).
        (r"execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)", _vllm_cached),
        # Source: SGLang pull requests 23419, 24911, 32850; the prefix "draft" is pull request 32212.
        (r"(?P<draft>draft )?step\[(?P<mode>\w+)(?P<fields>[^\]]*)\]", _sglang_step),
        # Source: SGLang eagle_worker_v2.py.
        (r"_?draft_extend(?:_for_\w+)?$", _fixed(SpanMeaning(PassKind.DRAFT, "SGLang", phase="draft_extend"))),
        (r"draft$", _fixed(SpanMeaning(PassKind.DRAFT, "SGLang", phase="draft"))),
        # Source: ROCm/ATOM model_runner.py.
        (r"(?P<mode>prefill|decode)\[(?P<fields>bs=.*)\]", _atom),
        # Source: TensorRT-LLM py_executor.py.
        (
            r"\[Executor\] _forward_step \d+: (?P<context>\d+) ctx reqs, (?P<tokens>\d+) ctx tokens, "
            r"(?P<generation>\d+) gen reqs",
            _tensorrt_llm,
        ),
        # Source: engine/phase_clock.py of this project.
        (r"fastverify\.(?P<phase>prefill|plain|verify|draft|extend)$", _fastverify),
        # Source: torch.profiler's schedule(); says nothing of the kind.
        (r"ProfilerStep#\d+$", _fixed(SpanMeaning(PassKind.OTHER, "PyTorch"))),
    )
)
