"""`fastverify generate`: continue a prompt with the built-in engine, streaming, and say what each cycle cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fastverify.cli.console import err, print_json
from fastverify.cli.engine_flags import with_engine_flags
from fastverify.engine.config import EngineConfig
from fastverify.engine.model_folders import target_folder
from fastverify.engine.request import Request, RequestStats, SamplingParams
from fastverify.engine.tokenizer import Tokenizer
from fastverify.errors import ConfigError
from fastverify.units import format_ms, s_to_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastverify.engine.engine import Engine

SCHEMA_VERSION = 1


def _option(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, rich_help_panel="Text")
    return option


@with_engine_flags
def generate(
    config: EngineConfig,
    prompt: Annotated[
        str, typer.Argument(help="Text to continue. Without it and --file, standard input is read.")
    ] = "",
    file: Annotated[Path | None, _option("Read the prompt from this file.")] = None,
    max_tokens: Annotated[int, _option("Tokens to generate.")] = 128,
    temperature: Annotated[float, _option("0 is greedy.")] = 0.0,
    ignore_eos: Annotated[bool, _option("Do not end at the model's end-of-sequence tokens.")] = False,
    plain: Annotated[bool, _option("Decode without speculation, whatever the drafter.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Continue a prompt; the text goes to stdout as it comes, what it cost to stderr."""
    from fastverify.engine.engine import Engine

    tokenizer = Tokenizer.load(target_folder(config.model))
    text = read_prompt(prompt, file)
    sampling = SamplingParams(max_tokens, temperature, config.seed, ignore_eos=ignore_eos)
    request = Request("generate", tuple(tokenizer.encode(text)), sampling, speculative=not plain)
    with Engine.start(config) as engine:
        token_ids, reason, stats = _stream(engine, request, tokenizer, is_quiet=as_json)
        cycles = engine.stats().cycles
    if as_json:
        print_json(_document(tokenizer.decode(token_ids), token_ids, reason, stats, cycles))
    else:
        err.print(_summary(stats, cycles))


def read_prompt(prompt: str, file: Path | None) -> str:
    """The prompt from the argument, a file or standard input. Raises ConfigError for two of them, or none."""
    if prompt and file is not None:
        raise ConfigError("a prompt comes from the argument or from --file, got both. Leave one out.")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--file must be a readable UTF-8 text file, but {file} is not: {error}.") from error
    else:
        text = _read_argument_or_stdin(prompt)
    if not text:
        raise ConfigError("there is nothing to continue. Give a prompt, --file PATH, or text on standard input.")
    return text


def _read_argument_or_stdin(prompt: str) -> str:
    """Bytes that are no UTF-8 come as lone surrogates, or as an error, depending on the locale."""
    try:
        text = prompt or ("" if sys.stdin.isatty() else sys.stdin.read())
        text.encode("utf-8")
    except UnicodeError as error:
        raise ConfigError(f"a prompt must be UTF-8, but it is not: {error}.") from error
    return text


def _stream(
    engine: Engine, request: Request, tokenizer: Tokenizer, *, is_quiet: bool
) -> tuple[list[int], str, RequestStats]:
    """Run the request and print its text as it comes."""
    decoder = tokenizer.decoder()
    token_ids: list[int] = []
    engine.submit(request)
    for event in engine.events():
        token_ids += event.token_ids
        if not is_quiet:
            sys.stdout.write(decoder.push(event.token_ids))
            sys.stdout.flush()
        if event.finished and event.stats is not None:
            if not is_quiet:
                sys.stdout.write(decoder.finish() + "\n")
            return token_ids, str(event.finish_reason), event.stats
    raise AssertionError("the last event of a request carries its statistics")


def _tok_s(stats: RequestStats) -> float:
    """Decoding speed: tokens after the first one, over the time after it."""
    return (stats.num_output_tokens - 1) / stats.decode_s if stats.decode_s > 0 else 0.0


def _phases_ms(cycle: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds per cycle by phase, "total" included."""
    return {
        name.removesuffix("_s"): s_to_ms(value) / cycle["count"] for name, value in cycle.items() if name.endswith("_s")
    }


def _document(text: str, token_ids: list[int], reason: str, stats: RequestStats, cycles: Any) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "text": text,
        "token_ids": token_ids,
        "finish_reason": reason,
        "tok_s": _tok_s(stats),
        "prefill_ms": s_to_ms(stats.prefill_s),
        "accept_length": stats.accept_length,
        "num_verify_passes": stats.num_verify_passes,
        "num_proposed_drafts": stats.num_proposed_drafts,
        "num_correct_drafts": stats.num_correct_drafts,
        "correct_drafts_per_position": list(stats.correct_drafts_per_position),
        "cycles": [
            {key: cycle[key] for key in ("kind", "batch", "num_rows", "count")} | {"ms": _phases_ms(cycle)}
            for cycle in cycles
        ],
    }


def _summary(stats: RequestStats, cycles: Any) -> Table:
    """One column per kind of cycle, one row per phase."""
    title = (
        f"{stats.num_output_tokens} tokens, {_tok_s(stats):.1f} tok/s, "
        f"acceptance length {stats.accept_length:.2f}, prefill {format_ms(s_to_ms(stats.prefill_s))}"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("phase")
    columns = [_phases_ms(cycle) for cycle in cycles]
    for cycle in cycles:
        table.add_column(f"{cycle['kind']}, {cycle['num_rows']} rows, {cycle['count']} x", justify="right")
    for phase in dict.fromkeys(phase for column in columns for phase in column):
        table.add_row(phase, *(format_ms(column[phase]) if phase in column else "" for column in columns))
    return table
