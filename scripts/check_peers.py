#!/usr/bin/env python3
"""Run every GPU all-reduce backend once between real GPUs and say which ones work, what they answer, and why not.

    python scripts/check_peers.py                    # all backends, one process per GPU
    python scripts/check_peers.py nccl vllm          # some of them
    python scripts/check_peers.py --settings         # NCCL under every named setting: also how bare Tree fails
    python scripts/check_peers.py --late             # NCCL: a rank that never comes is an error

Each check has processes of its own, so that one which crashes or hangs ends alone. Exit code 1 where one that claims to
run does not give right sums. Times are rough: one graph, no rival beside it.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fastverify.comm.accuracy import (
    UNIT_ROUNDOFF,
    add_exactly,
    is_within,
    norm_error_bound,
    norm_exactly,
    sum_error_bound,
)
from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.gpu.backends import GPU_BACKENDS, find_gpu_backend
from fastverify.comm.gpu.timing import capture, time_replays, timing_stream
from fastverify.comm.group import Group, create_group
from fastverify.comm.peers.nccl import NcclBackend, read_nccl_versions
from fastverify.comm.peers.nccl_failure import check_server_calls
from fastverify.comm.peers.nccl_settings import NCCL_SETTINGS, explain_failure
from fastverify.errors import CommTimeoutError, FastverifyError

_SIZES = (8, 4096, 7168, 28_672, 114_688, 524_288)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ROWS = ((1, 4096), (4, 7168), (16, 7168))
_CALLS, _REPLAYS = 20, 30
_TIMED = (4096, 28_672, 114_688)


@dataclass
class Answer:
    """What one rank found out."""

    refusal: str = ""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def main() -> int:
    """Run what was asked for, print a line or more for each, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=list(GPU_BACKENDS))
    parser.add_argument("--world-size", type=int, default=torch.cuda.device_count())
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--deadline-s", type=float, default=120.0)
    options = parser.parse_args()
    unknown = [name for name in options.backends if name not in GPU_BACKENDS]
    if unknown:
        parser.error(f"a backend is one of {', '.join(GPU_BACKENDS)}, got {', '.join(unknown)}")
    if options.world_size < 2:
        parser.error(f"it takes 2 or more GPUs, one per rank; torch sees {torch.cuda.device_count()}")
    checks: dict[str, tuple[Callable[..., Answer], dict[str, str], str]] = {}
    if options.settings:
        checks |= {f"nccl: {name}": (check_setting, s.env, name) for name, s in NCCL_SETTINGS.items()}
    elif options.late:
        checks["nccl, rank 1 never comes"] = (check_late_rank, {}, "nccl")
    else:
        checks |= {name: (check_backend, {}, find_gpu_backend(name).name) for name in options.backends}
    has_failed = False
    for title, (check, environment, name) in checks.items():
        answers = run(check, options.world_size, environment, name, options.deadline_s)
        has_failed |= show(title, answers)
    return int(has_failed)


def show(title: str, answers: dict[int, Answer | str]) -> bool:
    """Print one check; returns whether it failed."""
    refusals = {
        rank: answer.refusal for rank, answer in answers.items() if isinstance(answer, Answer) and answer.refusal
    }
    if refusals and len(refusals) == len(answers):
        print(f"--  {title}: {refusals[0]}")
        return False
    failures = [f"rank {rank}: {refusal}" for rank, refusal in refusals.items()]
    for rank, answer in answers.items():
        texts = [answer] if isinstance(answer, str) else answer.failures
        failures += [f"rank {rank}: {text}" for text in texts]
    print(f"{'BAD' if failures else 'ok'}  {title}")
    notes = answers[0].notes if isinstance(answers[0], Answer) else []
    for line in [*failures, *notes]:
        print(f"    {line}")
    sys.stdout.flush()
    return bool(failures)


def run(
    check: Callable[..., Answer], world_size: int, environment: dict[str, str], name: str, deadline_s: float
) -> dict[int, Answer | str]:
    """The check on one process per GPU. A rank that dies or is still busy at the deadline answers with a text."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (sender, check, rank, world_size, f"file://{folder}/meet", environment, name)
            processes.append(context.Process(target=run_rank, args=arguments, daemon=True))
            processes[-1].start()
            sender.close()
            pipes.append(receiver)
        deadline = time.monotonic() + deadline_s
        answers: dict[int, Answer | str] = {}
        for rank, receiver in enumerate(pipes):
            try:
                is_there = receiver.poll(max(0.0, deadline - time.monotonic()))
                answers[rank] = receiver.recv() if is_there else f"no answer within {deadline_s:g} s"
            except EOFError:
                processes[rank].join(5)
                answers[rank] = f"its process ended with code {processes[rank].exitcode}"
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
    return answers


def run_rank(
    sender: Any,
    check: Callable[..., Answer],
    rank: int,
    world_size: int,
    rendezvous: str,
    environment: dict[str, str],
    name: str,
) -> None:
    """One process."""
    os.environ.update(environment)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    try:
        group = create_group(rank, world_size, rendezvous, device=device, timeout_s=60)
        with torch.cuda.stream(timing_stream(device)):
            answer = check(group, name)
    except Exception:  # noqa: BLE001 - the parent shows it
        answer = Answer(failures=[traceback.format_exc()])
    sender.send(answer)


def check_backend(group: Group, name: str) -> Answer:
    """Sums, norms, gathers, captured calls and rough times of one backend."""
    spec = find_gpu_backend(name)
    support = spec.find_support(group)
    if not support.ok:
        return Answer(refusal=support.reason)
    backend, answer = spec.create(group), Answer()
    for check in (check_sums, check_norms, check_gather, check_graph):
        answer.failures += check(backend, group)
    answer.notes += time_roughly(backend, group)
    if name.startswith("nccl"):
        answer.notes.append(
            f"NCCL loaded, built against: {read_nccl_versions()}; kernels: {kernel_names(backend, group)}"
        )
    backend.close()
    return answer


def make_inputs(group: Group, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Every rank's input, the same on every rank."""
    generators = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(group.world_size)]
    return [torch.randn(shape, generator=generator).to(dtype).to(group.device) for generator in generators]


def bound_of(inputs: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Two ranks: one rounding. More: libraries may round at every addition."""
    bound = sum_error_bound(inputs, dtype)
    return bound + (len(inputs) - 2) * UNIT_ROUNDOFF[dtype] * add_exactly([x.abs() for x in inputs])


def check_sums(backend: AllReduceBackend, group: Group) -> list[str]:
    """Every size and dtype that the backend takes, in place and, where it can, out of place; same bits on all ranks."""
    failures = []
    with_gloo = GlooBackend(group)
    for dtype in _DTYPES:
        for size in _SIZES:
            if not backend.can_run(size, dtype).ok:
                continue
            inputs = make_inputs(group, (size,), dtype, seed=size)
            x = backend.all_reduce(inputs[group.rank].clone())
            torch.cuda.synchronize(group.device)
            if not is_within(x, add_exactly(inputs), bound_of(inputs, dtype)):
                failures.append(f"wrong sum of {size} {dtype}")
            if hasattr(backend, "all_reduce_out"):
                out = backend.all_reduce_out(inputs[group.rank], torch.empty_like(x))
                if not torch.equal(out, x):
                    failures.append(f"out of place differs for {size} {dtype}")
            every = with_gloo.all_gather(x.cpu())
            if not all(torch.equal(other, every[0]) for other in every):
                failures.append(f"ranks hold different bits of {size} {dtype}")
    with_gloo.close()
    return failures


def check_norms(backend: AllReduceBackend, group: Group) -> list[str]:
    """The norm is checked on the residual that came out, the residual against the exact sum."""
    failures = []
    for shape in _ROWS:
        if not backend.can_run(shape[0] * shape[1], torch.bfloat16).ok:
            continue
        inputs = make_inputs(group, shape, torch.bfloat16, seed=shape[0])
        before, weight = make_inputs(group, shape, torch.bfloat16, seed=99)[0], torch.ones(shape[1]).bfloat16()
        weight, residual = weight.to(group.device) * 1.5, before.clone()
        normed = backend.all_reduce_residual_rmsnorm(inputs[group.rank].clone(), residual, weight, 1e-5)
        bound = 2 * bound_of([before, *inputs], torch.bfloat16)
        if not is_within(residual, add_exactly([before, *inputs]), bound):
            failures.append(f"wrong residual of {list(shape)}")
        # A fused kernel norms what it rounded last or what it had before rounding: twice the bound covers both.
        exact = norm_exactly(residual, weight, 1e-5)
        if not is_within(normed, exact, 2 * norm_error_bound(residual, weight, 1e-5)):
            failures.append(f"wrong norm of {list(shape)}")
    return failures


def check_gather(backend: AllReduceBackend, group: Group) -> list[str]:
    """Every rank's part in rank order."""
    inputs = make_inputs(group, (3, 50), torch.float32, seed=5)
    ok = torch.equal(backend.all_gather(inputs[group.rank]), torch.stack(inputs))
    return [] if ok else ["wrong all-gather"]


def check_graph(backend: AllReduceBackend, group: Group) -> list[str]:
    """A graph of copies and sums of three sizes, replayed with new data each time, gives what eager calls give."""
    sizes = [size for size in (4096, 28_672, 114_688) if backend.can_run(size, torch.bfloat16).ok]
    sources = [torch.zeros(size, dtype=torch.bfloat16, device=group.device) for size in sizes]
    targets = [torch.zeros_like(source) for source in sources]

    def step() -> None:
        for source, target in zip(sources, targets, strict=True):
            backend.all_reduce(target.copy_(source))

    step()
    graph, failures = capture(step, 3), []
    for replay in range(_REPLAYS):
        for size, source in zip(sizes, sources, strict=True):
            source.copy_(make_inputs(group, (size,), torch.bfloat16, seed=replay)[group.rank])
        graph.replay()
        torch.cuda.synchronize(group.device)
        for source, target in zip(sources, targets, strict=True):
            if not torch.equal(target, backend.all_reduce(source.clone())):
                failures.append(f"replay {replay} differs from an eager call at {source.numel()} elements")
    return failures[:3]


def time_roughly(backend: AllReduceBackend, group: Group) -> list[str]:
    """Median microseconds per call in a graph of 20, of sums of zeros."""
    texts = []
    for size in _TIMED:
        if backend.can_run(size, torch.bfloat16).ok:
            x = torch.zeros(size, dtype=torch.bfloat16, device=group.device)
            backend.all_reduce(x)
            graph = capture(lambda x=x: backend.all_reduce(x), _CALLS)
            samples_us = time_replays(graph, _CALLS, _REPLAYS)
            texts.append(f"{2 * size} B {statistics.median(samples_us):.1f}")
    return [f"us per call: {', '.join(texts)}"] if texts else []


def kernel_names(backend: AllReduceBackend, group: Group) -> list[str]:
    """Kernels of one all-reduce of 8 KB, by the profiler: NCCL falls back to its ordinary ones without a word."""
    x = torch.zeros(4096, dtype=torch.bfloat16, device=group.device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        backend.all_reduce(x)
        torch.cuda.synchronize(group.device)
    return sorted({event.name for event in profile.events() if "nccl" in event.name.lower()})


def check_setting(group: Group, name: str) -> Answer:
    """NCCL under one setting: sums, the calls of servers, and what our explanation makes of their failure."""
    setting, (version, _) = NCCL_SETTINGS[name], read_nccl_versions()
    support = setting.find_support(version, group.world_size)
    if not support.ok:
        return Answer(refusal=support.reason)
    backend = NcclBackend(group)
    answer = Answer(failures=check_sums(backend, group), notes=time_roughly(backend, group))
    for outcome in check_server_calls(backend, group.device):
        if outcome.ok:
            continue
        where = "in a capture" if outcome.captured else "eagerly"
        text = f"{outcome.call} {where}: {outcome.error or '-'}"
        if outcome.capture_error:
            text += f" | the capture: {outcome.capture_error.splitlines()[0]}"
        answer.notes.append(text)
        if explain_failure(setting, f"{outcome.error} {outcome.capture_error}", version) is None:
            answer.failures.append(f"{outcome.call} {where} failed and nothing explains it")
    with suppress(FastverifyError, RuntimeError):  # a failed capture may have taken the communicator along
        backend.close()
    return answer


def check_late_rank(group: Group, name: str) -> Answer:
    """The last rank makes no second call; the others must get an error in time and be able to use their GPU."""
    backend = NcclBackend(group)
    x = torch.ones(4096, device=group.device)
    backend.all_reduce(x)
    if group.rank == group.world_size - 1:
        time.sleep(8)
        return Answer()
    backend.all_reduce(x)
    start_s = time.monotonic()
    try:
        backend.check(timeout_s=2)
    except CommTimeoutError as error:
        torch.cuda.synchronize(group.device)
        return Answer(notes=[f"after {time.monotonic() - start_s:.1f} s: {error}"])
    return Answer(failures=["no error"])


if __name__ == "__main__":
    sys.exit(main())
