"""How fast is the shared-memory all-reduce against gloo between CPU ranks, alone and fused with residual and RMSNorm?

Every backend in the same run, in turn, checked against an exact sum; the method is that of comm/bench/cpu.py.
Each setting is launched several times, because where the ranks' cores lie decides much and changes between launches;
the spread between launches is that of A against A. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fastverify.comm.bench.cpu import BenchConfig, BenchResult, BenchRow
from fastverify.comm.bench.cpu_launch import run_bench
from fastverify.records import write_record
from fastverify.units import format_bytes, parse_bytes

SIZES = "1280,4KB,8KB,16KB,32KB,64KB,128KB,256KB,512KB,1MB,4MB"


@dataclass(frozen=True)
class Target:
    """What the project promises for 2 ranks, float32, without fusion."""

    num_bytes: int
    max_median_us: float | None = None
    min_speedup: float | None = None


TARGETS = (
    Target(8 * 1024, max_median_us=5.0, min_speedup=30.0),
    Target(64 * 1024, max_median_us=15.0),
    Target(256 * 1024, min_speedup=8.0),
)


def print_rows(title: str, results: list[BenchResult]) -> None:
    """Per size: each backend's median over launches of its medians, with the range of the launches."""
    by_size: dict[tuple[int, bool], dict[str, list[BenchRow]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for row in result.rows:
            by_size[row.num_bytes, row.fused][row.backend].append(row)
    print(f"\n{title}\n{'size':>10} {'operation':<22} {'gloo us':>24} {'shm us':>24} {'speedup':>8}")
    for (num_bytes, fused), by_backend in sorted(by_size.items()):
        cells = [format_launches(by_backend[backend]) for backend in ("gloo", "shm")]
        ratio = median_us(by_backend["gloo"]) / median_us(by_backend["shm"])
        operation = "sum + residual + norm" if fused else "sum"
        print(f"{format_bytes(num_bytes):>10} {operation:<22} {cells[0]:>24} {cells[1]:>24} {ratio:>7.1f}x")
    for result in results:
        print(f"shm: {result.setups['shm']}")


def format_launches(rows: list[BenchRow]) -> str:
    """`4.2 (3.9 .. 5.1)`, with WRONG if any launch gave a wrong sum."""
    times_us = [row.median_us for row in rows if row.median_us is not None]
    wrong = "" if all(row.correct for row in rows) else " WRONG"
    return f"{median_us(rows):.1f} ({min(times_us):.1f} .. {max(times_us):.1f}){wrong}"


def median_us(rows: list[BenchRow]) -> float:
    """Median over launches. Raises ValueError with the reason where a launch could not run."""
    reasons = [row.reason for row in rows if row.median_us is None]
    if reasons:
        raise ValueError(f"{rows[0].backend} did not run: {reasons[0]}")
    return median(row.median_us for row in rows if row.median_us is not None)


def print_targets(results: list[BenchResult]) -> None:
    """Which promises hold in this run."""
    print("\ntargets, 2 ranks, float32")
    for target in TARGETS:
        rows = [row for result in results for row in result.rows if row.num_bytes == target.num_bytes and not row.fused]
        shm_us = median_us([row for row in rows if row.backend == "shm"])
        speedup = median_us([row for row in rows if row.backend == "gloo"]) / shm_us
        size = format_bytes(target.num_bytes)
        if target.max_median_us is not None:
            verdict = "met" if shm_us <= target.max_median_us else "MISSED"
            print(f"{size:>8}: {shm_us:.1f} us, at most {target.max_median_us:g} us: {verdict}")
        if target.min_speedup is not None:
            verdict = "met" if speedup >= target.min_speedup else "MISSED"
            print(f"{size:>8}: {speedup:.1f}x gloo, at least {target.min_speedup:g}x: {verdict}")


def main() -> None:
    """Measure, print, and write a record when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the raw samples to this JSON file")
    arguments = parser.parse_args()
    sizes = tuple(parse_bytes(text) for text in arguments.sizes.split(","))
    records = []
    for world_size in arguments.world_sizes:
        for dtype in arguments.dtypes:
            config = BenchConfig(sizes, world_size, dtype, arguments.iterations)
            results = [run_bench(config) for _ in range(arguments.launches)]
            print_rows(f"{world_size} ranks, {dtype}: median us (range of {arguments.launches} launches)", results)
            if (world_size, dtype) == (2, "float32") and {target.num_bytes for target in TARGETS} <= set(sizes):
                print_targets(results)
            records += [
                {
                    "launch": launch,
                    "setups": result.setups,
                    "setup_timings": [vars(timing) for timing in result.setup_timings],
                    "rows": [vars(row) for row in result.rows],
                }
                for launch, result in enumerate(results)
            ]
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        write_record(arguments.out, question=__doc__.splitlines()[0], settings=settings, results={"launches": records})


if __name__ == "__main__":
    main()
