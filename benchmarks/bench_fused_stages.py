"""Where does the fused kernel's time go on one GPU with two virtual ranks, and which way of doing a stage is fastest?

Rows of 7168 in bfloat16 over push memory. For each number of rows and cluster size, variants of the kernel
(fused_variants.py) take turns in CUDA graphs of 50 calls per rank; the table gives microseconds per call, and for
variants the difference from the kernel as it is. Stamps are clock cycles of one thread within one call. Variants that
compute the norm are checked against a float64 norm; those that leave something out are not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from ctypes import Structure
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fastverify.comm.accuracy import is_within, norm_error_bound, norm_exactly
from fastverify.comm.cuda.driver import Kernel, load_kernels
from fastverify.comm.cuda.kernels import KernelSet, make_spec
from fastverify.comm.cuda.launch import Launch, Protocol, fused_launch
from fastverify.comm.cuda.rank import CudaRank
from fastverify.comm.cuda.virtual_ranks import VirtualRanks
from fastverify.records import write_record
from fused_variants import STAMP_NAMES, STAMPS, VARIANTS, Variant, compile_variant

ROWS = (1, 4, 16)
# Cluster and units per thread.
SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (8, 1))
HIDDEN = 7168
EPS = 1e-6
CALLS_PER_GRAPH = 50
SPIN_BOUND_CYCLES = 100_000_000


class StampingKernel:
    """Gives the kernel of one rank a place for its stamps."""

    def __init__(self, kernel: Kernel, stamps: torch.Tensor) -> None:
        self._kernel = kernel
        self._stamps = stamps

    def launch(self, num_blocks: int, num_threads: int, stream: int, call: Structure, *, overlap: bool = False) -> None:
        """See Kernel."""
        call.scale_out = self._stamps[call.rank].data_ptr()
        self._kernel.launch(num_blocks, num_threads, stream, call, overlap=overlap)


class VariantKernels(KernelSet):
    """The product's kernels, but `variant` in place of the fused one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, 2)
        self.variant = VARIANTS[0]
        self.stamps = torch.zeros(2, len(STAMP_NAMES), dtype=torch.int64, device=device)
        self._functions: dict[tuple[str, int, int, int], Kernel] = {}

    def compile_all(self, variants: list[Variant], launches: list[Launch]) -> None:
        """Machine code of every variant for every shape, loaded."""
        wanted = {self._key(variant, launch): (variant, launch) for variant in variants for launch in launches}
        todo = [(key, *what) for key, what in wanted.items() if key not in self._functions]
        for key, variant, launch in todo:
            spec = make_spec("fused.cu", 2, torch.bfloat16, launch.units, launch.cluster, threads=launch.threads)
            if variant.exact_threads:
                macros = dict(spec.defines) | {"FV_MAX_THREADS": launch.threads}
                spec = replace(spec, defines=tuple(macros.items()))
            cubin = compile_variant(variant, spec, self.architecture)
            name = "fastverify_fused_sentinel"
            self._functions[key] = load_kernels(cubin, (name,))[name]

    def fused(self, dtype: torch.dtype, launch: Launch, *, outbox: bool = False, fp8: bool = False) -> Any:
        """See KernelSet."""
        function = self._functions[self._key(self.variant, launch)]
        return StampingKernel(function, self.stamps) if self.variant is STAMPS else function

    def _key(self, variant: Variant, launch: Launch) -> tuple[str, int, int, int]:
        return variant.name, launch.units, launch.cluster, launch.threads


@dataclass
class Case:
    """One variant with one shape: a graph of calls, and its samples."""

    name: str
    num_rows: int
    launch: Launch | None
    graph: torch.cuda.CUDAGraph
    verdict: str
    samples_us: list[float] = field(default_factory=list)

    def time(self, replays: int) -> None:
        """Add one sample per replay."""
        self.graph.replay()
        for _ in range(replays):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            self.graph.replay()
            end.record()
            end.synchronize()
            self.samples_us.append(start.elapsed_time(end) * 1000 / CALLS_PER_GRAPH)


class Bench:
    """Two virtual ranks, their tensors for one number of rows, and cases over them."""

    def __init__(self, num_rows: int, kernels: VariantKernels) -> None:
        self.kernels = kernels
        num_bytes = num_rows * HIDDEN * 2
        self.virtual = VirtualRanks(
            2, "push", max_bytes=max(num_bytes, 1 << 18), spin_bound_cycles=SPIN_BOUND_CYCLES, kernels=self.kernels
        )
        self.num_rows = num_rows
        self._inputs = [torch.randn(num_rows, HIDDEN, device="cuda").bfloat16() * 2.0**-6 for _ in range(2)]
        self._weight = torch.randn(HIDDEN, device="cuda").bfloat16()
        self._residual = torch.randn(num_rows, HIDDEN, device="cuda").bfloat16()
        self._residuals = [self._residual.clone() for _ in range(2)]
        self._outputs = [torch.empty_like(x) for x in self._inputs]

    def make_launch(self, cluster: int, units: int) -> Launch:
        """Every row gets a cluster of its own."""
        return fused_launch(
            *(Protocol.SENTINEL, self.num_rows, HIDDEN * 2),
            cluster=cluster,
            max_blocks=self.num_rows * cluster,
            min_units=units,
        )

    def make_sum_case(self) -> Case:
        """The plain all-reduce of as many bytes, with the package's launch."""

        def work(rank: CudaRank) -> None:
            rank.all_reduce(self._inputs[rank.rank], self._outputs[rank.rank])

        return self._capture("plain all-reduce", None, work, check=None)

    def make_case(self, variant: Variant, launch: Launch) -> Case:
        """The fused kernel in one variant."""
        self.kernels.variant = variant

        def work(rank: CudaRank) -> None:
            i = rank.rank
            rank.all_reduce_residual_rmsnorm(
                self._inputs[i], self._residuals[i], self._weight, EPS, self._outputs[i], launch
            )

        return self._capture(variant.name, launch, work, check=self._is_right if variant.is_right else None)

    def read_stamps(self, launch: Launch, replays: int) -> list[int]:
        """Cycles between stamps: the median over replays of the last call, averaged over the ranks."""
        case = self.make_case(STAMPS, launch)
        steps = []
        for _ in range(replays):
            case.graph.replay()
            torch.cuda.synchronize()
            steps.append(self.kernels.stamps.diff(dim=1).float().mean(0).cpu())
        return [int(step) for step in torch.stack(steps).median(0).values]

    def _capture(self, name: str, launch: Launch | None, work: Any, check: Any) -> Case:
        for own in self._residuals:
            own.copy_(self._residual)
        for out in self._outputs:
            out.fill_(float("nan"))
        self.virtual.run(work)
        self.virtual.check()
        verdict = "-" if check is None else "ok" if check() else "WRONG"

        def repeated(rank: CudaRank) -> None:
            for _ in range(CALLS_PER_GRAPH):
                work(rank)

        return Case(name, self.num_rows, launch, self.virtual.capture(repeated), verdict)

    def _is_right(self) -> bool:
        bound = norm_error_bound(self._residuals[0], self._weight, EPS)
        right = is_within(self._outputs[0], norm_exactly(self._residuals[0], self._weight, EPS), bound)
        same = torch.equal(self._outputs[0], self._outputs[1]) and torch.equal(self._residuals[0], self._residuals[1])
        return right and same


def time_in_turns(cases: list[Case], rounds: int, replays: int) -> None:
    """A B A B, so that a drift of the clock meets all alike."""
    for _ in range(rounds):
        for case in cases:
            case.time(replays)


def measure(
    num_rows: int, kernels: VariantKernels, shapes: list[tuple[int, int]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """All variants of all shapes for one number of rows, printed."""
    bench = Bench(num_rows, kernels)
    launches = {shape: bench.make_launch(*shape) for shape in shapes}
    started = time.monotonic()
    bench.kernels.compile_all([*VARIANTS, STAMPS], list(launches.values()))
    print(f"\n{num_rows} rows: compiled in {time.monotonic() - started:.1f} s", flush=True)
    plain = bench.make_sum_case()
    cases = {shape: [bench.make_case(variant, launch) for variant in VARIANTS] for shape, launch in launches.items()}
    time_in_turns([plain, *(case for group in cases.values() for case in group)], arguments.rounds, arguments.replays)
    bench.virtual.check()
    stamps = {shape: bench.read_stamps(launch, 20) for shape, launch in launches.items()}
    print_table(plain, cases, stamps)
    return {
        "plain_us": plain.samples_us,
        "shapes": [
            {
                "cluster": cluster,
                "units": units,
                "threads": launches[cluster, units].threads,
                "stamp_cycles": dict(zip(STAMP_NAMES[1:], stamps[cluster, units], strict=True)),
                "variants": [{"name": c.name, "verdict": c.verdict, "samples_us": c.samples_us} for c in group],
            }
            for (cluster, units), group in cases.items()
        ],
    }


def print_table(
    plain: Case, cases: dict[tuple[int, int], list[Case]], stamps: dict[tuple[int, int], list[int]]
) -> None:
    """Columns are shapes: cluster x units per thread."""
    plain_us = median(plain.samples_us)
    print(f"{'plain all-reduce':<36}{plain_us:8.2f}")
    print(f"{'cluster x units':<36}" + "".join(f"{f'{cluster}x{units}':>9}" for cluster, units in cases))
    as_is = {shape: median(group[0].samples_us) for shape, group in cases.items()}
    print(f"{'as it is':<36}" + "".join(f"{us:9.2f}" for us in as_is.values()))
    print(f"{'  above plain':<36}" + "".join(f"{us - plain_us:9.2f}" for us in as_is.values()))
    for index, variant in enumerate(VARIANTS[1:], start=1):
        row = [median(group[index].samples_us) - as_is[shape] for shape, group in cases.items()]
        verdicts = {group[index].verdict for group in cases.values()} - {"-", "ok"}
        print(f"{variant.name:<36}" + "".join(f"{us:+9.2f}" for us in row) + "".join(f"  {v}" for v in verdicts))
    for index, name in enumerate(STAMP_NAMES[1:]):
        print(f"{'  cycles to ' + name:<36}" + "".join(f"{steps[index]:9d}" for steps in stamps.values()), flush=True)


def main() -> None:
    """Measure, print, and write a record when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replays", type=int, default=12)
    parser.add_argument("--out", type=Path, help="write the raw samples to this JSON file")
    parser.add_argument("--commit", default="", help="what runs here, where there is no checkout")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU that torch sees")
    torch.manual_seed(0)
    has_clusters = torch.cuda.get_device_capability()[0] >= 9
    shapes = [shape for shape in SHAPES if has_clusters or shape[0] == 1]
    kernels = VariantKernels(torch.device("cuda:0"))
    results = {str(num_rows): measure(num_rows, kernels, shapes, arguments) for num_rows in arguments.rows}
    if arguments.out:
        settings = {"rows": arguments.rows, "rounds": arguments.rounds, "replays": arguments.replays}
        settings |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "calls_per_graph": CALLS_PER_GRAPH,
        }
        question, commit = __doc__.splitlines()[0], arguments.commit
        write_record(arguments.out, question=question, settings=settings, results=results, commit=commit)


if __name__ == "__main__":
    # Streams that share a connection run one after the other; CUDA reads this when it starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    main()
