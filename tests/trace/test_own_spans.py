"""The built-in engine's recording, read back: the profiler, the phases and the communicator are the real ones."""

from pathlib import Path

import torch

from fastverify.comm.communicator import Communicator
from fastverify.comm.group import create_group
from fastverify.comm.local import LocalBackend
from fastverify.engine.phase_clock import PhaseClock
from fastverify.engine.profiler import RankProfiler
from fastverify.trace.breakdown import profile_of
from fastverify.trace.reader import read_trace
from fastverify.trace.spans import PassKind


def one_cycle(clock: PhaseClock, communicator: Communicator) -> None:
    x, weight = torch.ones(4, 16), torch.ones(16)
    with clock.phase("draft"):
        communicator.all_reduce(x @ torch.ones(16, 16))
    with clock.phase("verify"):
        for _ in range(3):
            communicator.all_reduce_residual_rmsnorm(x, torch.ones(4, 16), weight, 1e-6)
        communicator.all_gather(x)


def test_phases_and_collectives_of_the_engine_are_found(tmp_path: Path) -> None:
    communicator = Communicator(create_group(0, 1), LocalBackend(create_group(0, 1)))
    clock = PhaseClock([communicator])
    profiler = RankProfiler(0, clock)
    profiler.start()
    for _ in range(2):
        one_cycle(clock, communicator)
    path = profiler.stop(str(tmp_path))
    assert path is not None
    one_cycle(clock, communicator)
    (trace,) = read_trace(path)
    profile = profile_of([trace])
    rows = {row.kind: (row.count, row.all_reduces_per_pass, row.collectives_per_pass) for row in profile.passes}
    assert rows == {PassKind.DRAFT: (2, 1, 1), PassKind.VERIFY: (2, 3, 4)}
    (verify,) = profile.passes_of(PassKind.VERIFY)
    assert {(row.op, row.is_fused) for row in verify.collectives} == {("all_reduce", True), ("all_gather", False)}
    assert verify.backends == ("fastverify",)
    assert profile.device == "CPU"
