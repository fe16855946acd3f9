"""The GPU part of `fastverify bench all-reduce`: options to settings, rows to tables, one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from fastverify.cli.bench_request import GpuRequest, Request, require_times
from fastverify.cli.console import err, out, print_json, print_text
from fastverify.errors import ConfigError, EnvironmentMissingError
from fastverify.hardware import read_gpu_facts, read_machine
from fastverify.model_config import message_bytes, read_model_config
from fastverify.units import ITEM_BYTES, format_bytes, parse_bytes

if TYPE_CHECKING:
    from fastverify.comm.bench.gpu_advice import Advice, PassSize
    from fastverify.comm.bench.gpu_rows import GpuBenchConfig, GpuBenchResult, GpuBenchRow

SCHEMA_VERSION = 1
DEFAULT_DTYPE = "bfloat16"


def run(request: Request, gpu_request: GpuRequest, *, as_json: bool, plot: Path | None) -> bool:
    """Measure, print, plot; whether every answer was right."""
    try:
        from fastverify.comm.bench.gpu_advice import advise
        from fastverify.comm.bench.gpu_run import require_gpus
    except ImportError as error:
        raise EnvironmentMissingError(
            f"`fastverify bench` needs the package {error.name}. Install fastverify[torch], which brings it."
        ) from error
    passes = find_passes(request)
    config = make_config(request, gpu_request, passes)
    require_gpus(config)
    result = run_with_progress(config)
    advice = advise(result.rows, passes, config.modes[0])
    if as_json:
        print_json(to_document(config, result, advice))
    else:
        print_result(config, result, advice)
    if plot is not None:
        write_plot(config, result, passes, plot)
    require_times(row.median_us for row in result.rows)
    return all(row.correct is not False for row in result.rows)


def count_gpus() -> int:
    """GPUs that torch sees; none where torch is not installed."""
    try:
        from fastverify.comm.bench.gpu_run import count_gpus as count
    except ImportError:
        return 0
    return count()


def find_passes(request: Request) -> tuple[PassSize, ...]:
    """The kinds of pass of the model, where one was given."""
    from fastverify.comm.bench.gpu_advice import pass_sizes

    if request.model is None:
        return ()
    model = read_model_config(request.model)
    row_bytes = message_bytes(model, 1, ITEM_BYTES[request.dtype or DEFAULT_DTYPE])
    return pass_sizes(model.num_layers, row_bytes, request.batch, request.k)


def make_config(request: Request, gpu_request: GpuRequest, passes: Sequence[PassSize]) -> GpuBenchConfig:
    """Settings after every default is resolved. Raises ConfigError for a name that does not exist."""
    from fastverify.comm.bench.gpu_rows import DEFAULT_SETTING, DEFAULT_SIZES, GpuBenchConfig
    from fastverify.comm.bench.gpu_run import ALL_BACKENDS, ALL_SETTINGS, choose_names
    from fastverify.comm.bench.gpu_virtual import VIRTUAL_BACKENDS

    virtual = gpu_request.virtual_ranks > 0
    if virtual and request.world_size not in (None, gpu_request.virtual_ranks):
        raise ConfigError(
            f"--virtual-ranks is the world size, got {gpu_request.virtual_ranks} and --world-size {request.world_size}."
        )
    default = VIRTUAL_BACKENDS if virtual else ALL_BACKENDS
    dtype = request.dtype or DEFAULT_DTYPE
    sizes = tuple(one.num_bytes for one in passes) or request.row_sizes(dtype) or parse_sizes(request.sizes)
    return GpuBenchConfig(
        sizes=sizes or DEFAULT_SIZES,
        world_size=gpu_request.virtual_ranks or choose_world_size(request.world_size),
        backends=choose_names(request.backends, ALL_BACKENDS, default, "--backends"),
        nccl_settings=choose_names(gpu_request.nccl_settings, ALL_SETTINGS, (DEFAULT_SETTING,), "--nccl-settings"),
        modes=gpu_request.modes,
        dtype=dtype,
        iterations=request.iterations,
        hidden_size=read_model_config(request.model).hidden_size if request.model else request.hidden_size,
        cold_l2=gpu_request.cold_l2,
        virtual=virtual,
    )


def choose_world_size(given: int | None) -> int:
    """One rank per GPU unless told otherwise."""
    num_gpus = count_gpus()
    if given is None and num_gpus == 1:
        raise ConfigError(
            "an all-reduce needs 2 or more ranks and there is one GPU. Use --virtual-ranks 2 to time our kernels, "
            "or --world-size 2 to check them with processes that share it."
        )
    if given is None and num_gpus == 0:
        raise EnvironmentMissingError(
            "--device cuda needs an NVIDIA GPU that torch sees, found none. Use --device cpu."
        )
    return num_gpus if given is None else given


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, ascending; nothing for an empty text."""
    try:
        return tuple(sorted({parse_bytes(part) for part in text.split(",")})) if text else ()
    except ValueError as error:
        raise ConfigError(f"--sizes: {error}") from error


def run_with_progress(config: GpuBenchConfig) -> GpuBenchResult:
    """Measure with a progress bar on stderr."""
    from fastverify.comm.bench.gpu_run import run_gpu_bench

    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(f"starting {config.world_size} ranks", total=None)

        def show(done: int, total: int, rows: Sequence[GpuBenchRow]) -> None:
            progress.update(task, description="measuring sizes", completed=done, total=total)

        return run_gpu_bench(config, show)


def to_document(config: GpuBenchConfig, result: GpuBenchResult, advice: Sequence[Advice]) -> dict[str, object]:
    """What `--json` prints; the names are stable within a schema version."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": " ".join(["fastverify", *sys.argv[1:]]),
        "machine": read_machine().to_dict() | {"gpus": read_gpu_facts()},
        "settings": {
            "device": "cuda",
            "world_size": config.world_size,
            "dtype": config.dtype,
            "iterations": config.iterations,
            "virtual_ranks": config.virtual,
            "cold_l2": config.cold_l2,
        },
        "remarks": list(result.remarks),
        "empty_us": result.empty_us,
        "setups": result.setups,
        "rows": [row.to_dict() for row in result.rows],
        "advice": [asdict(one) for one in advice],
    }


def print_result(config: GpuBenchConfig, result: GpuBenchResult, advice: Sequence[Advice]) -> None:
    """One table per operation and mode, then remarks, setups, reasons and what to set."""
    for mode, fused in product(config.modes, (False, True)):
        rows = [row for row in result.rows if (row.mode, row.fused) == (mode, fused)]
        if any(row.median_us is not None for row in rows):
            out.print(make_table(config, rows, mode=mode, fused=fused))
    for remark in result.remarks:
        print_text(remark)
    if result.empty_us is not None:
        print_text(f"an empty kernel in a graph takes {result.empty_us:.2f} us")
    for way, setup in result.setups.items():
        print_text(f"{way}: {setup}")
    for reason in size_reasons(result):
        print_text(reason)
    for one in advice:
        print_text(one.sentence())


def make_table(config: GpuBenchConfig, rows: Sequence[GpuBenchRow], *, mode: str, fused: bool) -> Table:
    """One line per way that ran at some size, one column per size; the last line names the fastest correct one."""
    from fastverify.comm.bench.gpu_rows import fastest

    operation = "sum + residual + norm" if fused else "sum"
    calls = sorted({row.num_calls for row in rows if row.num_calls})
    how = f"in a CUDA graph of {'/'.join(map(str, calls))} calls" if mode == "graph" else "eager, one call at a time"
    if config.hidden_size:
        operation += f", rows of {config.hidden_size}"
    kind = "virtual ranks" if config.virtual else "ranks"
    title = (
        f"{operation}, {config.world_size} {kind}, {config.dtype}, {how}, {'cold' if config.cold_l2 else 'warm'} L2: "
        f"median us (IQR) of the slowest rank, checked"
    )
    table = Table("backend", title=title, title_justify="left")
    sizes = sorted({row.num_bytes for row in rows})
    for num_bytes in sizes:
        table.add_column(format_bytes(num_bytes), justify="right")
    best = {num_bytes: fastest(row for row in rows if row.num_bytes == num_bytes) for num_bytes in sizes}
    for label in dict.fromkeys(_label(row) for row in rows if row.median_us is not None):
        cells = {row.num_bytes: _format_time(row, best[row.num_bytes]) for row in rows if _label(row) == label}
        table.add_row(label, *(cells.get(num_bytes, "-") for num_bytes in sizes))
    table.add_section()
    winners = [best[num_bytes] for num_bytes in sizes]
    table.add_row("fastest", *("-" if row is None else _label(row) for row in winners))
    return table


def size_reasons(result: GpuBenchResult) -> list[str]:
    """Why a way that ran somewhere did not at other sizes; `setups` tells of those that never ran."""
    ran = {row.way for row in result.rows if row.median_us is not None}
    sizes: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        if row.reason and row.way in ran:
            operation = f"{'sum + residual + norm' if row.fused else 'sum'} ({row.mode})"
            key = (f"{_label(row)}, {operation}", row.reason)
            sizes.setdefault(key, []).append(format_bytes(row.num_bytes))
    return [f"{what} did not run at {', '.join(at)}: {reason}" for (what, reason), at in sizes.items()]


def write_plot(config: GpuBenchConfig, result: GpuBenchResult, passes: Sequence[PassSize], path: Path) -> None:
    """The curves of all ways as one HTML page that needs no network; of graphs where both modes were measured."""
    from fastverify.tuning.all_reduce_table import AllReduceRow
    from fastverify.tuning.report_render import render_all_reduce_html

    mode = config.modes[0]
    rows = [
        AllReduceRow.model_validate(row.to_dict() | {"backend": _label(row)}) for row in result.rows if row.mode == mode
    ]
    gpus = read_gpu_facts().get("names", [])
    names = ", ".join(sorted(set(gpus))) if isinstance(gpus, list) else ""
    title = f"All-reduce, {config.world_size} ranks, {config.dtype}, {mode}, {names or read_machine().cpu}"
    marks = {one.label: one.num_bytes for one in passes}
    path.write_text(render_all_reduce_html(rows, title, marks), encoding="utf-8")
    err.print(f"wrote {path}", markup=False)


def _label(row: GpuBenchRow) -> str:
    """The way; with the launch where tuning tried several of them."""
    return f"{row.way} [{row.launch}]" if row.is_candidate else row.way


def _format_time(row: GpuBenchRow, best: GpuBenchRow | None) -> str:
    if row.median_us is None:
        return "-"
    text = f"{row.median_us:.1f} ({row.iqr_us:.1f})"
    if not row.correct:
        return f"{text} [bold red]WRONG[/]"
    return f"[bold]{text}[/]" if row is best else text
