"""`fastverify bench all-reduce`: time and check every all-reduce backend that this machine can run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from fastverify.cli import bench_gpu
from fastverify.cli.bench_links import bench_links
from fastverify.cli.bench_request import GpuRequest, Request, require_times, split_names
from fastverify.cli.console import err, out, print_json, print_text
from fastverify.cli.exit_codes import ExitCode
from fastverify.errors import ConfigError, EnvironmentMissingError
from fastverify.hardware import read_machine
from fastverify.model_config import read_model_config
from fastverify.units import ITEM_BYTES, format_bytes, parse_bytes

if TYPE_CHECKING:
    from fastverify.comm.bench.cpu import BenchConfig, BenchResult, BenchRow

SCHEMA_VERSION = 1
DEFAULT_SIZES = "4KB,8KB,16KB,32KB,64KB,256KB,1MB"
DEVICES = ("auto", "cpu", "cuda")

app = typer.Typer(help="Micro-benchmarks of this machine.", no_args_is_help=True)
app.command("links")(bench_links)


@app.command("all-reduce")
def bench_all_reduce(
    sizes: Annotated[
        str, typer.Option(help=f"Message sizes of one rank, such as 4096,8KB,1MB. Default on a CPU: {DEFAULT_SIZES}.")
    ] = "",
    model: Annotated[
        Path | None, typer.Option(help="A config.json: measure its plain and its verify pass instead of --sizes.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="With --model: requests decoded together.")] = 1,
    hidden_size: Annotated[
        int, typer.Option(min=0, help="Elements of a row of the norm; without --sizes, 1 to 64 such rows are measured.")
    ] = 0,
    k: Annotated[int, typer.Option("--k", min=1, help="With --model: proposed draft tokens per request.")] = 4,
    world_size: Annotated[
        int | None, typer.Option(help="Ranks to start on this machine. Default: one per GPU, 2 on a CPU.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16. Default: bfloat16 on GPUs, float32 on a CPU.")
    ] = "",
    iterations: Annotated[int, typer.Option(help="Samples per backend and size.")] = 200,
    device: Annotated[str, typer.Option(help="auto (GPUs where there are two), cpu or cuda.")] = "auto",
    backends: Annotated[str, typer.Option(help="Backends to measure, such as push,nccl. Default: all.")] = "",
    virtual_ranks: Annotated[
        int, typer.Option(min=0, help="So many ranks in one process on one GPU; no link is measured.")
    ] = 0,
    nccl_settings: Annotated[
        str, typer.Option(help="NCCL settings to measure, such as default,ll,tree_plain,p2p_off, or all.")
    ] = "",
    mode: Annotated[str, typer.Option(help="On GPUs: graph, eager or both.")] = "",
    cold_l2: Annotated[bool, typer.Option("--cold-l2", help="On GPUs: no input in the L2 cache.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also write the curves to this .html file.")] = None,
) -> None:
    """Latency of every all-reduce backend by message size, alone and with residual + RMSNorm, each checked."""
    if plot is not None:
        check_plot(plot)
    if dtype and dtype not in ITEM_BYTES:
        raise ConfigError(f"--dtype must be one of {', '.join(ITEM_BYTES)}, got {dtype!r}.")
    request = Request(sizes, model, batch, k, world_size, dtype, iterations, backends, hidden_size)
    gpu_request = GpuRequest(virtual_ranks, nccl_settings, mode, cold_l2)
    if choose_device(device, virtual_ranks) == "cuda":
        all_correct = bench_gpu.run(request, gpu_request, as_json=as_json, plot=plot)
    else:
        gpu_request.require_unused()
        all_correct = run_on_cpu(request, as_json=as_json, plot=plot)
    if not all_correct:
        raise typer.Exit(ExitCode.FINDING)


def check_plot(path: Path) -> None:
    """Before minutes of measuring, not after. Raises ConfigError where no page can be written."""
    if path.suffix != ".html" or path.is_dir():
        raise ConfigError(f"--plot writes an .html file, got {path}.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot writes into a folder that exists, got {path}. Make {path.parent} first.")


def choose_device(device: str, virtual_ranks: int) -> str:
    """`cuda` or `cpu`. Without torch it is cpu, which then says what is missing."""
    if device not in DEVICES:
        raise ConfigError(f"--device must be one of {', '.join(DEVICES)}, got {device!r}.")
    if device == "cpu" and virtual_ranks:
        raise ConfigError("--virtual-ranks are ranks on one GPU, so it cannot go with --device cpu.")
    if device != "auto":
        return device
    return "cuda" if virtual_ranks or bench_gpu.count_gpus() >= 2 else "cpu"


def run_on_cpu(request: Request, *, as_json: bool, plot: Path | None) -> bool:
    """Measure, print, plot; whether every answer was right."""
    try:
        from fastverify.comm.bench.cpu import BACKENDS, BenchConfig
    except ImportError as error:
        raise EnvironmentMissingError(
            f"`fastverify bench` needs the package {error.name}. Install fastverify[torch], which brings it."
        ) from error
    dtype = request.dtype or "float32"
    all_sizes, hidden_size = choose_sizes(request, dtype)
    world_size = 2 if request.world_size is None else request.world_size
    names = split_names(request.backends) or BACKENDS
    config = BenchConfig(all_sizes, world_size, dtype, request.iterations, hidden_size, names)
    result = run_with_progress(config)
    if as_json:
        print_json(to_document(config, result))
    else:
        print_table(config, result)
    if plot is not None:
        write_plot(config, result, plot)
    require_times(row.median_us for row in result.rows)
    return all(row.correct is not False for row in result.rows)


def write_plot(config: BenchConfig, result: BenchResult, path: Path) -> None:
    """The curves as one HTML page that needs no network."""
    from fastverify.tuning.all_reduce_table import AllReduceRow
    from fastverify.tuning.report_render import render_all_reduce_html

    rows = [AllReduceRow.model_validate(row.to_dict()) for row in result.rows]
    title = f"All-reduce, {config.world_size} ranks, {config.dtype}, {read_machine().cpu}"
    path.write_text(render_all_reduce_html(rows, title), encoding="utf-8")
    err.print(f"wrote {path}", markup=False)


def choose_sizes(request: Request, dtype: str) -> tuple[tuple[int, ...], int]:
    """Message sizes in bytes, ascending, and the row of the fused norm (0 where nothing gives it)."""
    if request.model is not None:
        hidden_size = read_model_config(request.model).hidden_size
        row_bytes = hidden_size * ITEM_BYTES[dtype]
        return (request.batch * row_bytes, request.batch * (request.k + 1) * row_bytes), hidden_size
    if sizes := request.row_sizes(dtype):
        return sizes, request.hidden_size
    try:
        texts = (request.sizes or DEFAULT_SIZES).split(",")
        all_sizes = tuple(sorted({parse_bytes(text) for text in texts}))
    except ValueError as error:
        raise ConfigError(f"--sizes: {error}") from error
    row_bytes = request.hidden_size * ITEM_BYTES[dtype]
    if row_bytes and any(num_bytes % row_bytes for num_bytes in all_sizes):
        raise ConfigError(f"--sizes are whole rows of --hidden-size, {row_bytes} bytes, got {request.sizes}.")
    return all_sizes, request.hidden_size


def run_with_progress(config: BenchConfig) -> BenchResult:
    """Measure with a progress bar on stderr."""
    from fastverify.comm.bench.cpu_launch import run_bench

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
