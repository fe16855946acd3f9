"""Start-up probe: does every link deliver every bit, in every protocol and size class that will be used?

Wrong sums without any error have been reported of GPUs whose driver was patched to reach each other, and whether an
aligned 8-byte word arrives whole over host memory is up to the machine. So random data goes over every link and each
sum is compared to the bit. Each rank owns some of the sum's significant bits, and the sum is exact, so a wrong one
tells whose data was wrong. Data changes from round to round: what an earlier round left behind is wrong too.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol as Interface

import torch

from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.cuda.launch import Launch, Protocol
from fastverify.comm.cuda.watchdog import Report
from fastverify.comm.group import Group
from fastverify.units import format_bytes

# Significant bits of each dtype, the hidden one included: integers up to 2^bits are exact.
_EXACT_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# Arbitrary: even ranks that take turns on one GPU need milliseconds per call.
CASE_TIMEOUT_S = 10.0
_POLL_S = 0.001
# Any odd number moves each element to another place of a line and of a chunk in each round.
_ROLL = 1237


class ProbedRank(Interface):
    """What the probe calls; CudaRank has it."""

    def all_reduce(
        self, x: torch.Tensor, out: torch.Tensor | None = None, launch: Launch | None = None
    ) -> torch.Tensor:
        """Sum of `x` over the ranks, into `out`."""
        ...

    def status(self) -> Report | None:
        """What a kernel said when it gave up."""
        ...

    def abort(self) -> None:
        """Make kernels that wait leave."""
        ...


@dataclass(frozen=True)
class ProbeCase:
    """One launch at one size."""

    launch: Launch
    num_bytes: int

    def __str__(self) -> str:
        launch = self.launch
        return f"{launch.protocol.name.lower()} at {format_bytes(self.num_bytes)}"


@dataclass(frozen=True)
class Fault:
    """What `reader` saw of `source`'s data in one case: `num_wrong` of `num_elements`, or -1 where nothing came."""

    case: int
    source: int
    reader: int
    num_wrong: int
    num_elements: int


@dataclass(frozen=True)
class ProbeResult:
    """What all ranks saw; the same on every rank."""

    cases: tuple[ProbeCase, ...]
    faults: tuple[Fault, ...]
    elapsed_s: float

    @property
    def is_hung(self) -> bool:
        """Whether a rank waited in vain: the ranks are then out of step."""
        return any(fault.num_wrong < 0 for fault in self.faults)

    @property
    def broken_protocols(self) -> frozenset[Protocol]:
        """Protocols that gave a wrong answer."""
        return frozenset(self.cases[fault.case].launch.protocol for fault in self.faults)

    def explain(self, fabric: str, gpus: Sequence[str] = ()) -> str:
        """The faults in words, the worst first; empty where there are none."""
        worst = sorted(self.faults, key=lambda fault: (fault.num_wrong >= 0, -fault.num_wrong))
        texts = [_explain(fault, self.cases[fault.case], fabric, gpus) for fault in worst[:3]]
        more = f"; {len(worst) - 3} more like these" if len(worst) > 3 else ""
        return "; ".join(texts) + more


def _explain(fault: Fault, case: ProbeCase, fabric: str, gpus: Sequence[str]) -> str:
    link = f"rank {fault.source} to rank {fault.reader}"
    if gpus:
        link += f" (GPU {gpus[fault.source]} to {gpus[fault.reader]})"
    if fault.num_wrong < 0:
        return f"no data came from {link} over {fabric} memory ({case})"
    return (
        f"wrong data from {link} over {fabric} memory ({case}): {fault.num_wrong} of {fault.num_elements} elements. "
        f"The usual causes are a driver patched for peer access, an IOMMU that is on, and PCIe access control (ACS)"
    )


def probe(
    group: Group,
    rank: ProbedRank,
    cases: Sequence[ProbeCase],
    num_rounds: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    wait: Callable[[float], bool] | None = None,
) -> ProbeResult:
    """Run every case `num_rounds` times; every rank calls this together, with its kernels loaded.

    `wait(timeout_s)` waits for this rank's calls and says whether they ended.
    """
    start_s = time.monotonic()
    wait = wait or _wait_for_gpu
    faults: list[Fault] = []
    for index, case in enumerate(cases):
        parts = make_parts(group, index, case.num_bytes // dtype.itemsize, dtype)
        wrong = _run_case(group.rank, rank, case, parts, num_rounds, dtype)
        if not wait(CASE_TIMEOUT_S):
            rank.abort()
            wait(CASE_TIMEOUT_S)
        report = rank.status()
        if report is not None:
            faults.append(Fault(index, report.peer, group.rank, -1, 0))
            break
        num_elements = num_rounds * parts.shape[1]
        counts = enumerate(wrong.tolist())
        faults += [Fault(index, source, group.rank, count, num_elements) for source, count in counts if count]
    return _gather(group, cases, faults, start_s)


def _gather(group: Group, cases: Sequence[ProbeCase], faults: Sequence[Fault], start_s: float) -> ProbeResult:
    mine = json.dumps({"faults": [asdict(fault) for fault in faults], "elapsed_s": time.monotonic() - start_s})
    answers = [json.loads(answer) for answer in exchange(group, mine.encode())]
    all_faults = tuple(Fault(**fault) for answer in answers for fault in answer["faults"])
    return ProbeResult(tuple(cases), all_faults, max(answer["elapsed_s"] for answer in answers))


def _run_case(
    own: int, rank: ProbedRank, case: ProbeCase, parts: torch.Tensor, num_rounds: int, dtype: torch.dtype
) -> torch.Tensor:
    """How many elements of each rank's data were wrong, still to be computed by the GPU."""
    wrong = torch.zeros(parts.shape[0], dtype=torch.int64, device=parts.device)
    total = torch.empty(parts.shape[1], dtype=dtype, device=parts.device)
    for turn in range(num_rounds):
        now = parts.roll(turn * _ROLL, dims=1)
        # What an earlier round left in the output must not look like an answer.
        total.fill_(-1.0)
        rank.all_reduce(now[own].to(dtype), total, case.launch)
        wrong += count_wrong(total, now)
    return wrong


def make_parts(group: Group, case: int, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Every rank's data, as integers that own different bits of their sum: int32 [world_size, elements].

    Each rank makes the same numbers from the group's name, which is random.
    """
    bits = _EXACT_BITS[dtype] // group.world_size
    generator = torch.Generator().manual_seed(zlib.crc32(f"{group.name}/{case}".encode()))
    parts = torch.randint(0, 1 << bits, (group.world_size, num_elements), generator=generator, dtype=torch.int32)
    shifts = bits * torch.arange(group.world_size, dtype=torch.int32)
    return (parts << shifts[:, None]).to(group.device)


def count_wrong(total: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
    """For each rank, the elements of `total` in which its bits are not what it sent: int64 [world_size]."""
    expected = parts.sum(0, dtype=torch.int32)
    answer = total.float().nan_to_num(nan=-1.0, posinf=-1.0, neginf=-1.0).clamp(-1.0, 2.0**24)
    differing = answer.to(torch.int32) ^ expected
    # A fraction is wrong too, and its bits say nothing about whose fault it is.
    is_fraction = (answer != expected.float()) & (differing == 0)
    masks = _masks(parts.shape[0], total.dtype).to(total.device)
    is_wrong = ((differing[None, :] & masks[:, None]) != 0) | is_fraction[None, :]
    return is_wrong.sum(1)


def _masks(world_size: int, dtype: torch.dtype) -> torch.Tensor:
    bits = _EXACT_BITS[dtype] // world_size
    return torch.tensor([((1 << bits) - 1) << (bits * rank) for rank in range(world_size)], dtype=torch.int32)


def _wait_for_gpu(timeout_s: float) -> bool:
    """Whether the current stream came to its end in time."""
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    deadline_s = time.monotonic() + timeout_s
    while not done.query():  # type: ignore[no-untyped-call]
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
