"""How long does a small-message all-reduce take on one GPU with two virtual ranks, plain and fused with RMSNorm?

A CUDA graph holds a branch per rank of 50 calls, each after the one before; a sample is the time of a replay over 50.
Candidates take turns, round by round. Inputs are random; before and after the timing each candidate's output is
compared with a float64 sum within a derived bound, and between the ranks bit by bit. All data stays in the L2 cache.
NCCL refuses two ranks on one GPU, so there is no rival in this table.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from fastverify.comm.accuracy import (
    add_exactly,
    is_within,
    norm_error_bound,
    norm_exactly,
    sum_error_bound,
)
from fastverify.comm.cuda.compile import nvrtc_version
from fastverify.comm.cuda.launch import Launch, Protocol, choose_launch, fused_launch, num_batches
from fastverify.comm.cuda.rank import CudaRank
from fastverify.comm.cuda.virtual_ranks import FabricName, VirtualRanks
from fastverify.errors import FastverifyError
from fastverify.records import write_record

# Those with a target first.
SIZES = (8192, 57_344, 229_376, 1 << 20, 4096, 14_336, 28_672, 114_688, 458_752)
ROWS = (1, 4, 16)
HIDDEN = 7168
EPS = 1e-6
CALLS_PER_GRAPH = 50
# Short: a protocol error must not keep the GPU busy. About 50 ms.
SPIN_BOUND_CYCLES = 100_000_000
TARGETS_US = {
    "push": {8192: 2.3, 57_344: 2.6, 229_376: 3.0, 1 << 20: 6.0},
    "host": {8192: 4.0, 57_344: 8.0, 229_376: 24.0, 1 << 20: 100.0},
}


@dataclass
class Case:
    """One operation with one launch: how to start it, and whether its output is right."""

    virtual: VirtualRanks
    label: str
    num_bytes: int
    launch: Launch
    graph: torch.cuda.CUDAGraph
    work: Callable[[CudaRank], None]  # owns the inputs, which the graph only points to
    is_right: Callable[[], bool]
    samples_us: list[float] = field(default_factory=list)
    correct: bool = True

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

    def summary(self) -> dict[str, Any]:
        """Plain values for the record."""
        low, _, high = quantiles(self.samples_us, n=4)
        return {
            "case": self.label,
            "num_bytes": self.num_bytes,
            "launch": asdict(self.launch) | {"protocol": self.launch.protocol.name},
            "median_us": median(self.samples_us),
            "iqr_us": [low, high],
            "correct": self.correct,
            "samples_us": self.samples_us,
        }


def make_sum_case(fabric: FabricName, overlap: bool, num_bytes: int, launch: Launch) -> Case:
    """A plain all-reduce, out of place."""
    virtual = VirtualRanks(2, fabric, max_bytes=num_bytes, spin_bound_cycles=SPIN_BOUND_CYCLES, overlap=overlap)
    virtual.check_fits(launch)
    inputs = [torch.randn(num_bytes // 2, device="cuda").bfloat16() for _ in virtual.ranks]
    outputs = [torch.full_like(x, float("nan")) for x in inputs]
    exact, bound = add_exactly(inputs), sum_error_bound(inputs, torch.bfloat16)

    def is_right() -> bool:
        right = is_within(outputs[0], exact, bound) and all(torch.equal(outputs[0], out) for out in outputs[1:])
        for out in outputs:
            out.fill_(float("nan"))
        return right

    def work(rank: CudaRank) -> None:
        rank.all_reduce(inputs[rank.rank], outputs[rank.rank], launch)

    return _capture(virtual, f"{virtual.fabric.name} sum", num_bytes, launch, work, is_right)


def make_fused_case(fabric: FabricName, overlap: bool, num_rows: int, launch: Launch) -> Case:
    """Sum, residual and norm; the residual is updated call after call, as in a model."""
    num_bytes = num_rows * HIDDEN * 2
    virtual = VirtualRanks(2, fabric, max_bytes=num_bytes, spin_bound_cycles=SPIN_BOUND_CYCLES, overlap=overlap)
    virtual.check_fits(launch)
    inputs = [torch.randn(num_rows, HIDDEN, device="cuda").bfloat16() * 2.0**-6 for _ in virtual.ranks]
    weight = torch.randn(HIDDEN, device="cuda").bfloat16()
    residual = torch.randn(num_rows, HIDDEN, device="cuda").bfloat16()
    residuals = [residual.clone() for _ in inputs]
    outputs = [torch.full_like(x, float("nan")) for x in inputs]

    def is_right() -> bool:
        norm, bound = norm_exactly(residuals[0], weight, EPS), norm_error_bound(residuals[0], weight, EPS)
        right = is_within(outputs[0], norm, bound)
        right &= torch.equal(outputs[0], outputs[1]) and torch.equal(residuals[0], residuals[1])
        for own, out in zip(residuals, outputs, strict=True):
            own.copy_(residual)
            out.fill_(float("nan"))
        return right

    def work(rank: CudaRank) -> None:
        i = rank.rank
        rank.all_reduce_residual_rmsnorm(inputs[i], residuals[i], weight, EPS, outputs[i], launch)

    return _capture(virtual, f"{virtual.fabric.name} fused", num_bytes, launch, work, is_right)


def _capture(
    virtual: VirtualRanks,
    label: str,
    num_bytes: int,
    launch: Launch,
    work: Callable[[CudaRank], None],
    is_right: Callable[[], bool],
) -> Case:
    """Run once, check, capture. Raises FastverifyError where the first answer is wrong or never came."""
    virtual.run(work)
    virtual.check()
    if not is_right():
        raise FastverifyError(f"{label} of {num_bytes} bytes with {launch} gave a wrong answer.")

    def repeated(rank: CudaRank) -> None:
        for _ in range(CALLS_PER_GRAPH):
            work(rank)

    return Case(virtual, label, num_bytes, launch, virtual.capture(repeated), work, is_right)


def time_in_turns(cases: list[Case], rounds: int, replays: int) -> None:
    """A B A B: every case once per round; wrong answers after the timing are remembered."""
    for _ in range(rounds):
        for case in cases:
            case.time(replays)
            case.virtual.check()
            case.correct &= case.is_right()


def sum_candidates(fabric: FabricName, num_bytes: int) -> list[Launch]:
    """Launches worth a try, without twins."""
    protocols = list(Protocol) if fabric == "host" or num_bytes > 16_384 else [Protocol.LINES, Protocol.SENTINEL]
    pauses = (0, 100) if fabric == "host" else (0,)
    shapes = [(64, 128), (16, 256), (32, 256), (64, 256), (128, 256), (16, 512), (32, 512), (64, 512)]
    found: dict[Launch, None] = {}
    for protocol in protocols:
        for units in (1, 2) if num_bytes >= 114_688 else (1,):
            for blocks, threads in shapes:
                launch = Launch(protocol, blocks, threads, units)
                trimmed = min(blocks, num_batches(launch, num_bytes))
                found |= {Launch(protocol, trimmed, threads, units, pause): None for pause in pauses}
    return list(found)


def fused_candidates(fabric: FabricName, num_rows: int) -> list[Launch]:
    """Launches worth a try for rows of HIDDEN."""
    pauses = (0, 200) if fabric == "host" else (0,)
    found = []
    for protocol in (Protocol.LINES, Protocol.SENTINEL):
        for cluster in (1, 2, 4, 8):
            launch = fused_launch(protocol, num_rows, HIDDEN * 2, cluster=cluster, max_blocks=64)
            found += [Launch(**{**asdict(launch), "pause_ns": pause}) for pause in pauses]
    return found


def pick(make: Callable[[Launch], Case], launches: list[Launch], log: list[dict]) -> list[Case]:
    """The three fastest launches by a short timing; the others' medians stay in the record."""
    cases = []
    for launch in launches:
        try:
            case = make(launch)
            case.time(3)
            case.virtual.check()
        except FastverifyError as error:
            log.append({"launch": str(launch), "failed": str(error)})
            print("failed:", error, flush=True)
            continue
        cases.append(case)
    for case in cases:
        log.append({"case": case.label, "num_bytes": case.num_bytes, "launch": str(case.launch), "us": case.samples_us})
    best = sorted(cases, key=lambda case: median(case.samples_us))[:3]
    for case in best:
        case.samples_us = []
    return best


def time_empty_nodes(virtual: VirtualRanks, replays: int) -> list[float]:
    """The floor: the same graph with kernels that do nothing."""
    launch = Launch(Protocol.LINES, 1, 32)

    def repeated(rank: CudaRank) -> None:
        for _ in range(CALLS_PER_GRAPH):
            rank.start_empty(launch)

    virtual.run(repeated)
    case = Case(virtual, "empty", 0, launch, virtual.capture(repeated), repeated, lambda: True)
    case.time(replays)
    return case.samples_us


def make_jobs(fabric: FabricName, tune: bool, overlap: bool) -> list[tuple[Callable[[Launch], Case], list[Launch]]]:
    """What to measure: how to make a case of each size, and the launches to try."""
    jobs: list[tuple[Callable[[Launch], Case], list[Launch]]] = []
    with VirtualRanks(2, fabric) as virtual:
        for num_bytes in SIZES:
            launches = [choose_launch(virtual.fabric.rules, num_bytes)]
            if tune:
                launches = sum_candidates(fabric, num_bytes)
            jobs.append((partial(make_sum_case, fabric, overlap, num_bytes), launches))
        for num_rows in ROWS:
            launches = [virtual.ranks[0].choose_fused_launch(num_rows, HIDDEN * 2)]
            if tune:
                launches = fused_candidates(fabric, num_rows)
            jobs.append((partial(make_fused_case, fabric, overlap, num_rows), launches))
    return jobs


def measure(
    fabric: FabricName, tune: bool, overlap: bool, deadline: float, replays: int, save: Callable[[dict[str, Any]], None]
) -> None:
    """Everything of one kind of memory; `save` gets what there is after each size."""
    results: dict[str, Any] = {"rows": [], "tried": []}
    with VirtualRanks(2, fabric, overlap=overlap) as virtual:
        results["empty_node_us"] = time_empty_nodes(virtual, replays)
    print(f"{fabric}: empty node {median(results['empty_node_us']):.2f} us", flush=True)
    for make, launches in make_jobs(fabric, tune, overlap):
        if time.monotonic() > deadline:
            results["stopped"] = "out of time"
            break
        try:
            best = pick(make, launches, results["tried"])
            time_in_turns(best, rounds=3, replays=replays)
        except FastverifyError as error:
            results["tried"].append({"failed": str(error)})
            print("failed:", error, flush=True)
            continue
        for case in best:
            results["rows"].append(case.summary())
            print_case(fabric, case)
        save(results)


def print_case(fabric: str, case: Case) -> None:
    """One line of the table."""
    low, _, high = quantiles(case.samples_us, n=4)
    target = TARGETS_US[fabric].get(case.num_bytes) if case.label.endswith("sum") else None
    verdict = "" if target is None else f"  target {target}: {'met' if median(case.samples_us) <= target else 'MISSED'}"
    shape = case.launch
    size, middle = case.num_bytes, median(case.samples_us)
    print(
        f"{case.label:<12}{size:>9} B  {middle:7.2f} us ({low:.2f} .. {high:.2f})  "
        f"{'ok' if case.correct else 'WRONG'}  {shape.protocol.name} {shape.blocks}x{shape.threads} "
        f"units {shape.units} pause {shape.pause_ns} cluster {shape.cluster}{verdict}",
        flush=True,
    )


def main() -> None:
    """Measure, print, and write a record when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fabrics", nargs="+", default=["push", "host"], choices=["push", "host"])
    parser.add_argument("--tune", action="store_true", help="try many launches and time the three fastest of each size")
    parser.add_argument("--no-overlap", action="store_true", help="no programmatic dependent launch")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="stop before the next size after this long")
    parser.add_argument("--out", type=Path, help="write the raw samples to this JSON file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU that torch sees")
    # Streams that share a connection run one after the other; CUDA reads this when it starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    torch.manual_seed(0)
    settings = {
        "fabrics": arguments.fabrics,
        "tune": arguments.tune,
        "overlap": not arguments.no_overlap,
        "replays": arguments.replays,
        "calls_per_graph": CALLS_PER_GRAPH,
        "world_size": 2,
        "dtype": "bfloat16",
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "nvrtc": list(nvrtc_version()),
    }
    results: dict[str, Any] = {}

    def save(fabric: str, part: dict[str, Any]) -> None:
        results[fabric] = part
        if arguments.out:
            write_record(arguments.out, question=__doc__.splitlines()[0], settings=settings, results=results)

    for fabric in arguments.fabrics:
        deadline = time.monotonic() + arguments.seconds / len(arguments.fabrics)
        measure(fabric, arguments.tune, not arguments.no_overlap, deadline, arguments.replays, partial(save, fabric))


if __name__ == "__main__":
    main()
