"""What do our all-reduces look like in a profiler file? Records one per rank, for tests/data/traces.

    python benchmarks/trace_collectives.py --out FOLDER

Layers of a model without attention: products of [rows, 7168] bfloat16 with an all-reduce after each, in turn push, push
fused with residual and norm, host, host fused. A plain pass (one row) and a verify pass (four rows) are CUDA graphs, a
draft pass runs eagerly; their spans have the engine's names. The profiler slows the host down, so the times between
kernels mean nothing. tests/trace/test_own_kernels.py reads the files.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.gpu.backends import find_gpu_backend
from fastverify.comm.gpu.timing import capture, timing_stream
from fastverify.comm.group import close_group, create_group
from fastverify.errors import FastverifyError

HIDDEN = 7168
NUM_LAYERS = 4
NUM_PASSES = 5
EPS = 1e-6
MAX_FILE_BYTES = 3_000_000


class Layers:
    """The tensors of one rank and its two ways to reach the other."""

    def __init__(self, rank: int, device: torch.device, push: AllReduceBackend, host: AllReduceBackend) -> None:
        generator = torch.Generator(device).manual_seed(rank)
        options = {"generator": generator, "device": device, "dtype": torch.bfloat16}
        # The product of a rank's shard has about the size of its input over the number of ranks.
        self.weight = torch.randn(HIDDEN, HIDDEN, **options) * (0.5 / HIDDEN**0.5)
        self.norm_weight = torch.ones(HIDDEN, device=device, dtype=torch.bfloat16)
        self.backends = (push, host)
        self.device = device

    def make_pass(self, num_rows: int, num_layers: int) -> Callable[[], object]:
        """A pass over tensors of its own, which starts anew from the same input each time."""
        generator = torch.Generator(self.device).manual_seed(num_rows)  # every rank starts from the same hidden states
        start = torch.randn(num_rows, HIDDEN, generator=generator, device=self.device, dtype=torch.bfloat16)
        residual, hidden = torch.empty_like(start), torch.empty_like(start)

        def run() -> torch.Tensor:
            residual.copy_(start)
            hidden.copy_(start)
            x = hidden
            for _ in range(num_layers):
                for backend in self.backends:
                    x = backend.all_reduce(torch.nn.functional.linear(x, self.weight))
                    x = torch.nn.functional.linear(x, self.weight)
                    x = backend.all_reduce_residual_rmsnorm(x, residual, self.norm_weight, EPS)
            return hidden.copy_(x)

        return run


def record_rank(rank: int, world_size: int, folder: str, meet: str) -> None:
    """Record one rank's file."""
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    group = create_group(rank, world_size, f"file://{meet}", timeout_s=60, device=device)
    with (
        closing(find_gpu_backend("push").create(group)) as push,
        closing(find_gpu_backend("host").create(group)) as host,
        torch.cuda.stream(timing_stream(device)),
    ):
        layers = Layers(rank, device, push, host)
        runs = {"plain": layers.make_pass(1, NUM_LAYERS), "verify": layers.make_pass(4, NUM_LAYERS)}
        phases = {"draft": layers.make_pass(1, 1)}
        for run in (*runs.values(), *phases.values()):
            run()
        graphs = {phase: capture(run, 1) for phase, run in runs.items()}
        phases |= {phase: graph.replay for phase, graph in graphs.items()}
        replay_all(phases)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recording:
            replay_all(phases)
        path = Path(folder) / f"all_reduce_{world_size}x_{short_name(device)}_rank{rank}.json.gz"
        recording.export_chrome_trace(str(path))
        torch.cuda.synchronize(device)
        push.all_gather(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
    close_group(group)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise FastverifyError(f"a file for the tests has at most {MAX_FILE_BYTES} bytes, got {path.stat().st_size}.")


def replay_all(phases: dict[str, Callable[[], object]]) -> None:
    """All phases in turn, each in a span of its own."""
    for _ in range(NUM_PASSES):
        for phase, start in phases.items():
            with record_function(f"fastverify.{phase}"):
                start()
            torch.cuda.synchronize()


def short_name(device: torch.device) -> str:
    """`h200` of "NVIDIA H200"."""
    words = torch.cuda.get_device_name(device).lower().split()
    return "-".join(word for word in words if word not in ("nvidia", "geforce"))


def main() -> None:
    """Start the ranks and say what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--world-size", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as meet:
        arguments = (options.world_size, str(options.out), f"{meet}/meet")
        torch.multiprocessing.spawn(record_rank, arguments, nprocs=options.world_size)
    for path in sorted(options.out.glob("all_reduce_*.json.gz")):
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
