"""`fastverify profile`: what profiler files say about verify, draft and plain passes and their collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fastverify.cli.console import err, out, print_json, print_text
from fastverify.errors import ConfigError
from fastverify.model_config import read_model_config
from fastverify.trace.breakdown import Analysis, analyse
from fastverify.trace.collectives import ModelSizes
from fastverify.trace.compare import compare
from fastverify.trace.events import TraceData
from fastverify.trace.many import read_traces
from fastverify.trace.output.markdown import render_comparison_markdown, render_markdown
from fastverify.trace.output.page import render_page
from fastverify.trace.output.tables import (
    bar,
    collectives_table,
    comparison_table,
    health_table,
    passes_table,
    ranks_table,
)
from fastverify.trace.output.words import about_passes
from fastverify.trace.profile import Profile
from fastverify.trace.verdict import main_row

_ITEMSIZE = {"float32": 4, "float64": 8}


def profile(
    files: Annotated[
        list[str], typer.Argument(help="Profiler files (.json, .json.gz), folders of them, or - for standard input.")
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(help="Compare with this file: before a change, or plain decoding. May be repeated for ranks."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="config.json of the model: gives sizes to collectives the file has none for.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write one HTML page with the kernels of a pass.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown to paste into an issue.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Cut profiler files into passes and cost them: collectives per pass, exposed communication, compute, gaps."""
    if as_json and as_markdown:
        raise ConfigError("one output goes to stdout, got --json and --markdown. Pass one of them.")
    sizes = _sizes(model)
    analysis = analyse(_read(files), sizes)
    if html is not None:
        html.write_text(render_page(analysis), encoding="utf-8")
        err.print(f"wrote {html}", markup=False, soft_wrap=True)
    if against:
        _show_comparison(analyse(_read(against), sizes).profile, analysis.profile, as_json, as_markdown)
    elif as_json:
        print_json(analysis.profile.model_dump(mode="json"))
    elif as_markdown:
        print_text(render_markdown(analysis.profile))
    else:
        _show(analysis)


def _read(files: list[str]) -> list[TraceData]:
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        task = bars.add_task("reading", total=None)
        return read_traces(files, lambda done, total: bars.update(task, completed=done, total=total))


def _sizes(model: Path | None) -> ModelSizes | None:
    if model is None:
        return None
    config = read_model_config(model)
    return ModelSizes(config.hidden_size, _ITEMSIZE.get(config.torch_dtype, 2))


def _show(analysis: Analysis) -> None:
    found = analysis.profile
    print_text(found.verdict)
    device = f"on {found.device}." if found.device else ""
    print_text(" ".join(part for part in (found.program, device, about_passes(found)) if part))
    row = main_row(found)
    if row is not None:
        out.print(bar(row))
    if found.passes:
        out.print(passes_table(found))
    if row is not None and row.collectives:
        out.print(collectives_table(row))
    out.print(ranks_table(found))
    if found.health:
        out.print(health_table(found))


def _show_comparison(before: Profile, after: Profile, as_json: bool, as_markdown: bool) -> None:
    comparison = compare(before, after)
    if as_json:
        print_json(comparison.model_dump(mode="json"))
    elif as_markdown:
        print_text(render_comparison_markdown(comparison))
    else:
        print_text(comparison.verdict)
        out.print(comparison_table(comparison))
        for side, names in (("before", comparison.only_before), ("after", comparison.only_after)):
            if names:
                print_text(f"only {side}: {'; '.join(names)}")
