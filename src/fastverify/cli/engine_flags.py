"""The flags of every verb that starts an engine, generated from EngineConfig so that no setting lacks its flag.

A verb is written as a function of an EngineConfig; `with_engine_flags` turns that parameter into one option per field.
Values are checked by EngineConfig, which names the rule. Imports no torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from fastverify.engine.config import EngineConfig, parse_num_proposed_drafts

HELP = {
    "model": "Folder of a Hugging Face checkpoint, or 'bundled'.",
    "draft": "Folder of an EAGLE-3 head, 'bundled', or 'none'.",
    "tp_size": "Tensor-parallel rank processes.",
    "comm_backend": "All-reduce backend: auto, gloo, shm.",
    "fuse_rmsnorm": "Run all-reduce, residual add and RMSNorm as one call.",
    "drafter": "Who proposes drafts: eagle3, ngram, none.",
    "draft_shape": "chain or tree.",
    "num_draft_steps": "Depth of the draft: tokens of a chain, levels of a tree.",
    "top_k": "Branching of a tree; 1 for a chain.",
    "num_proposed_drafts": "Draft tokens verified per pass, or 'auto'.",
    "draft_placement": "Draft model sharded over the ranks, or replicated on each.",
    "draft_token_exchange": "How ranks agree on a draft token: gather_logits, local_argmax.",
    "ngram_min": "Shortest text that n-gram drafting looks up, in tokens.",
    "ngram_max": "Longest text that n-gram drafting looks up, in tokens.",
    "dtype": "float32, bfloat16 or float16.",
    "max_batch": "Requests decoded together.",
    "max_seq_len": "Prompt and output tokens of one request together.",
    "prefill_chunk": "Prompt rows computed between two decoding cycles.",
    "seed": "Seed of requests that bring none.",
    "num_threads": "Compute threads of each rank.",
}
# A field whose default is a number after resolution, but a word on the command line.
_PARSED = {"num_proposed_drafts": ("auto", parse_num_proposed_drafts)}


def with_engine_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter `config: EngineConfig` of a typer command by the flags of all its fields."""
    signature = inspect.signature(command, eval_str=True)
    names = [one.name for one in fields(EngineConfig)]

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        settings = {name: values.pop(name) for name in names}
        for name, (_, parse) in _PARSED.items():
            settings[name] = parse(settings[name])
        return command(config=EngineConfig(**settings), **values)

    own = [parameter for parameter in signature.parameters.values() if parameter.name != "config"]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + _flag_parameters()
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__  # typer would follow it to the parameter that was replaced
    return run


def _flag_parameters() -> list[inspect.Parameter]:
    hints = get_type_hints(EngineConfig)
    parameters = []
    for one in fields(EngineConfig):
        kind = hints[one.name] if hints[one.name] in (int, bool) else str
        default = _PARSED[one.name][0] if one.name in _PARSED else one.default
        option = typer.Option(help=HELP[one.name], rich_help_panel="Engine")
        parameters.append(
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
            )
        )
    return parameters
