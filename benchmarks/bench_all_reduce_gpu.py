"""How long does a small-message all-reduce take on GPUs, plain and fused with RMSNorm, beside every rival that can run?

The same code as `fastverify bench all-reduce --device cuda`, with the raw samples kept and the project's targets judged
at the end; it needs neither a checkout nor the compiled CPU modules (PYTHONPATH=src). Two transports: as the machine is
(`nvlink`), and without peer access (`host`: NCCL with NCCL_P2P_DISABLE=1 against our kernels through host memory).
`--virtual-ranks` runs on one GPU; `--tune` also times every launch of our kernels that may be worth it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastverify.comm.bench.gpu_rows import DEFAULT_SETTING, DEFAULT_SIZES, MODES, GpuBenchConfig, GpuBenchRow, fastest
from fastverify.comm.bench.gpu_run import (
    ALL_BACKENDS,
    ALL_SETTINGS,
    choose_names,
    count_gpus,
    nccl_version,
    require_gpus,
    run_gpu_bench,
)
from fastverify.comm.bench.gpu_virtual import VIRTUAL_BACKENDS
from fastverify.errors import ConfigError, FastverifyError
from fastverify.hardware import read_gpu_facts
from fastverify.records import write_record
from fastverify.units import ITEM_BYTES, format_bytes, parse_bytes

# Source: the project's targets, bf16, two ranks, CUDA graph, microseconds by backend and bytes.
TARGET_SIZES = (8192, 57_344, 229_376, 1 << 20)
TARGETS_US = {
    "virtual": {"push": (2.3, 2.6, 3.0, 6.0), "host": (4.0, 8.0, 24.0, 100.0)},
    "nvlink": {"push": (2.8, 3.1, 4.0, 7.5)},
    "host": {"host": (3.6, 6.0, 14.0, 45.0)},
}
# Fused with residual + RMSNorm, rows of 7168: what it may cost above the plain sum.
FUSED_ROWS = {"push": (1, 4, 16), "host": (4,)}
FUSED_ABOVE_US = {"push": 1.0, "host": 2.0}
TARGET_HIDDEN_SIZE = 7168
ROW_BYTES = TARGET_HIDDEN_SIZE * 2
MAX_RECORD_BYTES = 2_000_000
HOST_BACKENDS = ("host", "host_two_shot", "nccl")


def main() -> None:
    """Measure, print as it goes, judge, and write a record where asked to."""
    arguments = parse_arguments()
    if count_gpus() == 0:
        sys.exit("this benchmark needs an NVIDIA GPU that torch sees")
    config = make_config(arguments)
    require_gpus(config)
    save = partial(save_record, arguments, config)
    printed: list[int] = []

    def show(done: int, total: int, rows: Sequence[GpuBenchRow]) -> None:
        fresh = rows[sum(printed) :]
        printed.append(len(fresh))
        print_rows(fresh)
        if rows and arguments.out:
            save(rows, {}, None, ())

    result = run_gpu_bench(config, show, limit_s=arguments.seconds)
    save(result.rows, result.setups, result.empty_us, result.remarks)
    print_summary(config, result.rows)
    for line in (*result.remarks, *(f"{way}: {setup}" for way, setup in result.setups.items())):
        print(line)
    if result.empty_us is not None:
        print(f"empty kernel in a graph: {result.empty_us:.2f} us")
    if config.hidden_size in (0, TARGET_HIDDEN_SIZE):
        for line in judge_targets(result.rows, "virtual" if config.virtual else arguments.transport):
            print(line)
    if not config.virtual:
        print(judge_rivals(result.rows))
    if any(row.correct is False for row in result.rows):
        sys.exit("WRONG answers: see above")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="default: one per GPU")
    parser.add_argument("--transport", choices=["nvlink", "host"], default="nvlink")
    parser.add_argument("--virtual-ranks", type=int, default=0)
    parser.add_argument("--tune", action="store_true", help="also time the launches that may be worth it")
    parser.add_argument("--sizes", default="", help="such as 8KB,57344,1MB")
    parser.add_argument("--rows", default="", help="instead of sizes, with --hidden-size: such as 1,2,4,8,16,32,64")
    parser.add_argument("--hidden-size", type=int, default=0, help="elements of a row of the norm")
    parser.add_argument("--backends", default="", help="such as push,nccl, or all")
    parser.add_argument("--nccl-settings", default="", help="such as default,ll, or all")
    parser.add_argument("--mode", choices=[*MODES, "both"], default="graph")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--calls", type=int, default=50, help="calls in a graph")
    parser.add_argument("--cold-l2", action="store_true")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no further size after this long")
    parser.add_argument("--commit", default="", help="what runs here, where there is no checkout: git describe --dirty")
    parser.add_argument("--out", type=Path, help="write samples and machine to this JSON file after every size")
    return parser.parse_args()


def make_config(arguments: argparse.Namespace) -> GpuBenchConfig:
    """Settings after defaults; sizes with a target come first, in case time runs out."""
    virtual = arguments.virtual_ranks > 0
    default, setting = ALL_BACKENDS, DEFAULT_SETTING
    if virtual:
        default = VIRTUAL_BACKENDS
    elif arguments.transport == "host":
        default, setting = HOST_BACKENDS, "p2p_off"
    sizes = choose_sizes(arguments.sizes, arguments.rows, arguments.hidden_size * ITEM_BYTES[arguments.dtype])
    return GpuBenchConfig(
        sizes=tuple(sorted(sizes, key=lambda size: (size not in TARGET_SIZES, size))),
        world_size=arguments.virtual_ranks or arguments.ranks or count_gpus(),
        backends=choose_names(arguments.backends, ALL_BACKENDS, default, "--backends"),
        nccl_settings=choose_names(arguments.nccl_settings, ALL_SETTINGS, (setting,), "--nccl-settings"),
        modes=MODES if arguments.mode == "both" else (arguments.mode,),
        dtype=arguments.dtype,
        iterations=arguments.iterations,
        hidden_size=arguments.hidden_size,
        calls=arguments.calls,
        cold_l2=arguments.cold_l2,
        virtual=virtual,
        tune=arguments.tune,
    )


def choose_sizes(sizes: str, rows: str, row_bytes: int) -> tuple[int, ...]:
    """Message sizes from either option. Raises ConfigError where they do not fit each other."""
    if rows and (sizes or not row_bytes):
        raise ConfigError("--rows come with --hidden-size and without --sizes.")
    if rows:
        return tuple(int(count) * row_bytes for count in rows.split(","))
    if row_bytes and not sizes:
        raise ConfigError("--hidden-size comes with --rows or --sizes.")
    return tuple(parse_bytes(size) for size in sizes.split(",")) if sizes else DEFAULT_SIZES


def save_record(
    arguments: argparse.Namespace,
    config: GpuBenchConfig,
    rows: Sequence[GpuBenchRow],
    setups: dict[str, str],
    empty_us: float | None,
    remarks: Sequence[str],
) -> None:
    """Everything that a reader needs to judge or repeat it."""
    if arguments.out is None:
        return
    results: dict[str, Any] = {
        "empty_us": empty_us,
        "remarks": list(remarks),
        "setups": setups,
        "rows": [
            row.to_dict()
            | {
                "row_elements": config.shape(row.num_bytes)[1],
                "tried": row.is_candidate,
                "samples_us": [round(us, 3) for us in row.samples_us],
            }
            for row in rows
        ],
    }
    settings = vars(config) | {"transport": "virtual" if config.virtual else arguments.transport}
    machine = {
        "gpus": read_gpu_facts(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl_version())),
    }
    question = (__doc__ or "").splitlines()[0]
    write_record(
        arguments.out,
        question=question,
        settings=settings,
        results=results,
        machine=machine,
        commit=arguments.commit,
    )
    if arguments.out.stat().st_size > MAX_RECORD_BYTES:
        print(f"{arguments.out} is larger than {format_bytes(MAX_RECORD_BYTES)}: use fewer --iterations", flush=True)


def print_rows(rows: Sequence[GpuBenchRow]) -> None:
    """One line per row, as soon as its size is done."""
    for row in rows:
        operation = f"{format_bytes(row.num_bytes):>9} {'fused' if row.fused else 'sum':<5} {row.mode:<5} {row.way:<20}"
        if row.median_us is None:
            print(f"{operation} {row.reason}", flush=True)
            continue
        verdict = "ok" if row.correct else "WRONG"
        times = f"{row.median_us:8.2f} us (IQR {row.iqr_us:.2f})"
        print(f"{operation} {times} {verdict} {row.launch or ''} x{row.num_calls}", flush=True)


def print_summary(config: GpuBenchConfig, rows: Sequence[GpuBenchRow]) -> None:
    """A compact table: one line per way, one column per size; launches that were only tried are left out."""
    sizes = sorted({row.num_bytes for row in rows})
    for mode in config.modes:
        for fused in (False, True):
            part = [row for row in rows if (row.mode, row.fused, row.is_candidate) == (mode, fused, False)]
            ways = dict.fromkeys(row.way for row in part if row.median_us is not None)
            wide = f", rows of {config.hidden_size}" if config.hidden_size else ""
            print(f"\n{'sum + residual + norm' if fused else 'sum'}{wide}, {mode}, us")
            print(f"{'':<22}" + "".join(f"{format_bytes(size):>10}" for size in sizes))
            for way in ways:
                found = {row.num_bytes: row for row in part if row.way == way}
                print(f"{way:<22}" + "".join(f"{format_cell(found.get(size)):>10}" for size in sizes))
    print()


def format_cell(row: GpuBenchRow | None) -> str:
    """The median, with a mark where the answer was wrong."""
    if row is None or row.median_us is None:
        return "-"
    return f"{row.median_us:.2f}{'' if row.correct else '!'}"


def judge_targets(rows: Sequence[GpuBenchRow], kind: str) -> list[str]:
    """One line per target of two ranks and bf16 that was measured."""
    picked = [row for row in rows if row.mode == "graph" and row.world_size == 2 and row.dtype == "bfloat16"]
    lines = []
    for backend, limits in TARGETS_US[kind].items():
        for num_bytes, limit_us in zip(TARGET_SIZES, limits, strict=True):
            median_us = find_us(picked, backend, num_bytes, fused=False)
            if median_us is not None:
                lines.append(verdict(f"{backend} {format_bytes(num_bytes)}", median_us, limit_us))
        for num_rows in FUSED_ROWS[backend]:
            fused_us = find_us(picked, backend, num_rows * ROW_BYTES, fused=True)
            plain_us = find_us(picked, backend, num_rows * ROW_BYTES, fused=False)
            if fused_us is not None and plain_us is not None:
                what = f"{backend} fused, {num_rows} row(s), above plain"
                lines.append(verdict(what, fused_us - plain_us, FUSED_ABOVE_US[backend]))
    return lines


def find_us(rows: Sequence[GpuBenchRow], backend: str, num_bytes: int, *, fused: bool) -> float | None:
    """Median of the backend's own choice of launch."""
    found = (row for row in rows if (row.backend, row.num_bytes, row.fused) == (backend, num_bytes, fused))
    return next((row.median_us for row in found if not row.is_candidate and row.correct), None)


def verdict(what: str, measured_us: float, limit_us: float) -> str:
    """One target."""
    outcome = "met" if measured_us <= limit_us else "MISSED"
    return f"target {what}: {measured_us:.2f} us, at most {limit_us:g}: {outcome}"


def judge_rivals(rows: Sequence[GpuBenchRow]) -> str:
    """Whether ours is the fastest correct way at every size and operation, and where it is not."""
    ours = ("push", "push_two_shot", "islands", "host", "host_two_shot", "auto")
    lost = []
    for mode, fused, num_bytes in sorted({(row.mode, row.fused, row.num_bytes) for row in rows}):
        part = [row for row in rows if (row.mode, row.fused, row.num_bytes) == (mode, fused, num_bytes)]
        best, best_ours = fastest(part), fastest(row for row in part if row.backend in ours)
        if best is not None and best is not best_ours and best.median_us is not None:
            own = "nothing" if best_ours is None else f"{best_ours.way} {best_ours.median_us:.2f}"
            operation = "fused" if fused else "sum"
            lost.append(f"{format_bytes(num_bytes)} {operation} {mode}: {best.way} {best.median_us:.2f}, ours {own}")
    if not lost:
        return "ours is the fastest at every size and operation"
    return "another backend is faster at " + "; ".join(lost)


if __name__ == "__main__":
    try:
        main()
    except FastverifyError as error:
        sys.exit(f"bench_all_reduce_gpu: {error}")
