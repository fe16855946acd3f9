"""`fastverify bench all-reduce`: time and check every all-reduce backend that this machine can run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from fastverify.cli.console import err, out, print_json, print_text
from fastverify.cli.exit_codes import ExitCode
from fastverify.errors import ConfigError, EnvironmentMissingError
from fastverify.hardware import read_machine
from fastverify.model_config import read_model_config
from fastverify.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from fastverify.comm.bench import BenchConfig, BenchResult, BenchRow

SCHEMA_VERSION = 1
DEFAULT_SIZES = "4KB,8KB,16KB,32KB,64KB,256KB,1MB"
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

app = typer.Typer(help="Micro-benchmarks of this machine.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Keeps `all-reduce` a command of its own while it is the only one."""


@app.command("all-reduce")
def bench_all_reduce(
    sizes: Annotated[
        str, typer.Option(help=f"Message sizes of one rank, such as 4096,8KB,1MB. Default: {DEFAULT_SIZES}.")
    ] = "",
    model: Annotated[
        Path | None, typer.Option(help="A config.json: measure its plain and its verify pass instead of --sizes.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="With --model: requests decoded together.")] = 1,
    k: Annotated[int, typer.Option("--k", min=1, help="With --model: proposed draft tokens per request.")] = 4,
    world_size: Annotated[int, typer.Option(help="Ranks to start on this machine.")] = 2,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    iterations: Annotated[int, typer.Option(help="Timed calls per backend and size.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also write the curves to this .html file.")] = None,
) -> None:
    """Latency of every all-reduce backend by message size, alone and with residual + RMSNorm, each checked."""
    if plot is not None and plot.suffix != ".html":
        raise ConfigError(f"--plot writes an .html file, got {plot}.")
    if dtype not in ITEM_BYTES:
        raise ConfigError(f"--dtype must be one of {', '.join(ITEM_BYTES)}, got {dtype!r}.")
    all_sizes, hidden_size = choose_sizes(sizes, model, batch, k, ITEM_BYTES[dtype])
    try:
        from fastverify.comm.bench import BenchConfig
    except ImportError as error:
        raise EnvironmentMissingError(
            f"`fastverify bench` needs the package {error.name}. Install fastverify[torch], which brings it."
        ) from error
    config = BenchConfig(all_sizes, world_size, dtype, iterations, hidden_size)
    result = run_with_progress(config)
    if as_json:
        print_json(to_document(config, result))
    else:
        print_table(config, result)
    if plot is not None:
        write_plot(config, result, plot)
    if any(row.correct is False for row in result.rows):
        raise typer.Exit(ExitCode.FINDING)


def write_plot(config: BenchConfig, result: BenchResult, path: Path) -> None:
    """The curves as one HTML page that needs no network."""
    from fastverify.tuning.all_reduce_table import AllReduceRow
    from fastverify.tuning.report_render import render_all_reduce_html

    rows = [AllReduceRow.model_validate(row.to_dict()) for row in result.rows]
    title = f"All-reduce, {config.world_size} ranks, {config.dtype}, {read_machine().cpu}"
    path.write_text(render_all_reduce_html(rows, title), encoding="utf-8")
    err.print(f"wrote {path}", markup=False)


def choose_sizes(sizes: str, model: Path | None, batch: int, k: int, item_bytes: int) -> tuple[tuple[int, ...], int]:
    """Message sizes in bytes, ascending, and the row of the fused norm (0 where no model gives it)."""
    if model is not None:
        if sizes:
            raise ConfigError("--model works out the sizes, so --sizes cannot be given too.")
        hidden_size = read_model_config(model).hidden_size
        row_bytes = hidden_size * item_bytes
        return (batch * row_bytes, batch * (k + 1) * row_bytes), hidden_size
    try:
        return tuple(sorted({parse_bytes(text) for text in (sizes or DEFAULT_SIZES).split(",")})), 0
    except ValueError as error:
        raise ConfigError(f"--sizes: {error}") from error


def run_with_progress(config: BenchConfig) -> BenchResult:
    """Measure with a progress bar on stderr."""
    from fastverify.comm.bench_launch import run_bench

    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(f"starting {config.world_size} ranks", total=None)
        return run_bench(
            config,
            lambda done, total: progress.update(task, description="measuring sizes", completed=done, total=total),
        )


def to_document(config: BenchConfig, result: BenchResult) -> dict[str, object]:
    """What `--json` prints; the names are stable within a schema version."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": " ".join(["fastverify", *sys.argv[1:]]),
        "machine": read_machine().to_dict(),
        "settings": {"world_size": config.world_size, "dtype": config.dtype, "iterations": config.iterations},
        "setups": result.setups,
        "rows": [row.to_dict() for row in result.rows],
    }


def print_table(config: BenchConfig, result: BenchResult) -> None:
    """One line per size and operation, one column per backend; below, how each was set up or why it is missing."""
    machine = read_machine()
    if config.world_size > machine.num_usable_cores:
        err.print(f"{config.world_size} ranks share {machine.num_usable_cores} cores: times include waiting for a core")
    title = (
        f"{config.world_size} ranks, {config.dtype}: median us (IQR) of the slowest rank, checked against an exact sum"
    )
    table = Table("size", "operation", title=title, title_justify="left")
    for backend in config.backends:
        table.add_column(backend, justify="right")
    table.add_column("fastest")
    for num_bytes in config.sizes:
        for fused in (False, True):
            rows = [row for row in result.rows if (row.num_bytes, row.fused) == (num_bytes, fused)]
            by_backend = {row.backend: row for row in rows}
            cells = [_format_time(by_backend[backend]) for backend in config.backends]
            operation = "sum + residual + norm" if fused else "sum"
            table.add_row(format_bytes(num_bytes), operation, *cells, _format_fastest(rows))
    out.print(table)
    for backend, setup in result.setups.items():
        print_text(f"{backend}: {setup}")


def _format_time(row: BenchRow) -> str:
    if row.median_us is None:
        return "did not run"
    return f"{row.median_us:.1f} ({row.iqr_us:.1f}) " + ("ok" if row.correct else "[bold red]WRONG[/]")


def _format_fastest(rows: list[BenchRow]) -> str:
    """The fastest correct backend, and how many times faster than the slowest one."""
    times_us = {row.backend: row.median_us for row in rows if row.median_us is not None and row.correct}
    if not times_us:
        return "-"
    fastest = min(times_us, key=lambda backend: times_us[backend])
    ratio = max(times_us.values()) / times_us[fastest]
    return f"{fastest} {ratio:.1f}x" if len(times_us) > 1 else fastest
