#!/usr/bin/env python3
"""Run every all-reduce kernel a few times on small messages, for compute-sanitizer to watch; sums are checked too.

    compute-sanitizer --tool memcheck python scripts/sanitize_kernels.py rank --rank 0 --world-size 2 --meet file:///F
    compute-sanitizer --tool memcheck python scripts/sanitize_kernels.py virtual

A sanitizer may run the kernels of one process one after the other, and ours wait for each other. So `rank` is one rank
in a process of its own, under a sanitizer of its own (scripts/check_gpu starts them): that works on several GPUs, and
on one, where kernels of different processes take turns. `virtual` has both ranks in one process; where their kernels
are kept apart, all but the last one give up at their bound of clock cycles, which is said and is no failure.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from fastverify.comm.accuracy import is_new_residual, is_norm, is_sum
from fastverify.comm.cuda.launch import Algorithm, Launch, Protocol
from fastverify.comm.cuda.rank import CudaRank
from fastverify.comm.cuda.virtual_ranks import VirtualRanks
from fastverify.comm.gpu.backends import find_gpu_backend
from fastverify.comm.group import close_group, create_group
from fastverify.errors import CommTimeoutError, ConfigError, ShapeError

EPS = 1e-5
# Elements: an odd tail, and some batches of every launch.
SIZES = (515, 28_672)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
UNITS = (1, 2, 4)
CLUSTERS = (1, 2, 4, 8)
ROWS = ((1, 1024), (5, 7168))
# Kernels and their loading are some hundred times slower under a sanitizer.
TIMEOUT_S = 240.0
# About a quarter of a second: what each kernel costs that waits in vain.
VIRTUAL_BOUND_CYCLES = 500_000_000


@dataclass(frozen=True)
class Case:
    """One kernel: a sum of `shape`, or with `is_fused` its norm too."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    launch: Launch | None = None
    is_fused: bool = False

    def make_inputs(self, world_size: int) -> list[torch.Tensor]:
        """By rank, on the CPU; the same in every process."""
        generator = torch.Generator().manual_seed(len(self.shape) + self.shape[-1])
        return [torch.randn(self.shape, generator=generator).to(self.dtype) for _ in range(world_size)]


class WrongAnswerError(Exception):
    """A sum or norm is outside its bound."""


def list_cases() -> Iterator[Case]:
    """Every kernel in bfloat16, whether this machine has it or not, and the launches by default in the other dtypes."""
    for algorithm, protocol, units in product(Algorithm, Protocol, UNITS):
        if (algorithm, protocol) != (Algorithm.ISLANDS, Protocol.FLAGS):
            launch = Launch(protocol, 4, 128, units, algorithm=algorithm)
            yield from (Case((size,), torch.bfloat16, launch) for size in SIZES)
    for protocol, cluster in product((Protocol.LINES, Protocol.SENTINEL), CLUSTERS):
        launch = Launch(protocol, 2 * cluster, 128, cluster=cluster)
        yield from (Case(shape, torch.bfloat16, launch, is_fused=True) for shape in ROWS)
    for dtype in DTYPES:
        yield from (Case((size,), dtype) for size in SIZES)
        yield from (Case(shape, dtype, is_fused=True) for shape in ROWS)


class Answer:
    """Tensors of one rank in one case. Everything but our kernels happens on the CPU, since the rest is not watched."""

    def __init__(self, case: Case, rank: int, world_size: int, device: torch.device) -> None:
        self.case = case
        self.inputs = case.make_inputs(world_size)
        self.before, self.weight = case.make_inputs(2)
        self.x = self.inputs[rank].to(device, copy=True)
        self.residual = self.before.to(device, copy=True)
        self.weight = self.weight.reshape(-1, case.shape[-1])[0].contiguous()
        self._weight = self.weight.to(device)

    def start(self, rank: CudaRank) -> None:
        """Enqueue the kernel. Raises ConfigError or ShapeError, on every rank, where there is none for this case."""
        if self.case.is_fused:
            rank.all_reduce_residual_rmsnorm(self.x, self.residual, self._weight, EPS, launch=self.case.launch)
        else:
            rank.all_reduce(self.x, launch=self.case.launch)

    def check(self) -> None:
        """Raises WrongAnswerError. The kernel has ended."""
        got = self.x.cpu()
        if not self.case.is_fused:
            is_right = is_sum(got, self.inputs)
        else:
            residual = self.residual.cpu()
            is_right = is_new_residual(residual, self.before, self.inputs) and is_norm(got, residual, self.weight, EPS)
        if not is_right:
            raise WrongAnswerError(f"{self.case} is wrong")


def run_rank(options: argparse.Namespace) -> None:
    """One rank of a group of processes, over the backends named."""
    device = torch.device("cuda", options.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    group = create_group(options.rank, options.world_size, options.meet, timeout_s=TIMEOUT_S, device=device)
    for name in options.backends:
        spec = find_gpu_backend(name)
        support = spec.find_support(group)
        if not support.ok:
            print(f"{name}: not run: {support.reason}", flush=True)
            continue
        backend = spec.create(group)
        num_right = 0
        for case in list_cases():
            answer = Answer(case, group.rank, group.world_size, device)
            try:
                answer.start(backend.rank)  # type: ignore[attr-defined]
            except (ConfigError, ShapeError):
                continue
            torch.cuda.synchronize(device)
            answer.check()
            num_right += 1
        gathered = backend.all_gather(torch.full((1000,), float(group.rank), device=device)).cpu()
        if gathered.sum(1).tolist() != [1000.0 * rank for rank in range(group.world_size)]:
            raise WrongAnswerError("all-gather is wrong")
        print(f"{name}: rank {group.rank}: {num_right} launches and a gather right", flush=True)
        backend.close()
    close_group(group)


def run_virtual(options: argparse.Namespace) -> None:
    """All ranks in this process on one GPU. New ranks for each case: those that gave up are out of step."""
    device = torch.device("cuda:0")
    for fabric in ("push", "host"):
        outcomes: Counter[str] = Counter()
        for case in list_cases():
            outcomes[run_virtual_case(case, fabric, options.world_size, device)] += 1
        print(f"{fabric}: {', '.join(f'{count} launches {what}' for what, count in outcomes.items())}", flush=True)


def run_virtual_case(case: Case, fabric: str, world_size: int, device: torch.device) -> str:
    """What became of it."""
    settings = {"max_bytes": 1 << 17, "spin_bound_cycles": VIRTUAL_BOUND_CYCLES, "overlap": False}
    with VirtualRanks(world_size, fabric, **settings) as virtual:  # type: ignore[arg-type]
        answers = [Answer(case, rank, world_size, device) for rank in range(world_size)]
        torch.cuda.synchronize(device)
        try:
            virtual.run(lambda rank: answers[rank.rank].start(rank))
            virtual.check()
        except (ConfigError, ShapeError):
            return "not built"
        except CommTimeoutError:
            return "kept apart"
        for answer in answers:
            answer.check()
    return "right"


def main() -> None:
    """Parse, run, say what was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(required=True)
    rank = modes.add_parser("rank", help="one rank of a group of processes")
    rank.add_argument("--rank", type=int, required=True)
    rank.add_argument("--world-size", type=int, default=2)
    rank.add_argument("--meet", required=True, help="where the ranks meet: file:///PATH or tcp://127.0.0.1:PORT")
    rank.add_argument("--backends", nargs="+", default=["push", "host"])
    rank.set_defaults(run=run_rank)
    virtual = modes.add_parser("virtual", help="all ranks in this process")
    virtual.add_argument("--world-size", type=int, default=2)
    virtual.set_defaults(run=run_virtual)
    options = parser.parse_args()
    try:
        options.run(options)
    except WrongAnswerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
