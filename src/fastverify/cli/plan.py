"""`fastverify plan`: measure a server in both arms, say what is slow, and rank what to try. Nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastverify.cli.campaign import (
    bundled_prompts,
    changed_settings,
    document_of,
    measure_all_reduce,
    new_folder,
    open_tuner,
    read_prompts,
)
from fastverify.cli.console import err, print_json, print_text
from fastverify.cli.engine_flags import with_engine_flags
from fastverify.engine.config import EngineConfig
from fastverify.engine.model_folders import target_folder
from fastverify.servers.builtin import BuiltinServer
from fastverify.tuning.campaign import PLAN_FILE, PLAN_MARKDOWN_FILE, make_document
from fastverify.tuning.plan_markdown import plan_markdown
from fastverify.tuning.trial import TuneOptions

DEFAULTS = TuneOptions()
FolderOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Campaign folder; default: a new one in runs/ named after the time.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
PromptsOption = Annotated[
    Path | None,
    typer.Option(help='JSON lines with a "text" each; default: the bundled held-out code prompts.'),
]


@with_engine_flags
def plan(
    config: EngineConfig,
    folder: FolderOption = None,
    prompts: PromptsOption = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts of the load.")] = DEFAULTS.num_prompts,
    num_tokens: Annotated[int, typer.Option(min=8, help="Output tokens per request.")] = DEFAULTS.num_tokens,
    repeats: Annotated[int, typer.Option(min=1, help="Times each prompt is sent per launch.")] = DEFAULTS.repeats,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = DEFAULTS.concurrency,
    as_json: JsonOption = False,
) -> None:
    """Measure plain and speculative decoding with these engine settings, and write a ranked plan."""
    folder = new_folder(folder)
    options = TuneOptions(num_prompts=num_prompts, num_tokens=num_tokens, repeats=repeats, concurrency=concurrency)
    load = read_prompts(prompts) if prompts else bundled_prompts("code")
    rows = measure_all_reduce(config, target_folder(config.model), iterations=200)
    document = make_document(BuiltinServer.name, changed_settings(config), load, options, rows)
    with open_tuner(folder, document) as tuner:
        made = tuner.measure_and_plan()
    files = [folder / PLAN_FILE, folder / PLAN_MARKDOWN_FILE]
    if as_json:
        print_json(document_of(made.model_dump(mode="json"), folder, files))
        return
    print_text(plan_markdown(made))
    err.print(f"next: fastverify tune {folder}", markup=False)
