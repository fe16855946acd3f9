"""The all-reduce benchmark: every backend this machine can run, in one run, in turn, each answer checked.

One number is the median over iterations of the slowest rank's time in the call, with all ranks set off together. Inputs
are random and written afresh before every call. Backends take turns in short blocks; the last answer of the first and
of the last block is checked. `measure` runs on every rank; bench/cpu_launch.py starts the ranks.
Method: docs/all-reduce.md. It knows no model: sizes come as bytes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

import torch

from fastverify.comm.accuracy import is_new_residual, is_norm, is_sum
from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.bench.limits import check_largest, check_world_size
from fastverify.comm.chooser import Timing, choose_gloo, choose_shm
from fastverify.comm.dtypes import DTYPES
from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import Group
from fastverify.comm.shm import ShmBackend
from fastverify.errors import ConfigError, FastverifyError
from fastverify.units import ns_to_us

_CHOOSERS = {"gloo": choose_gloo, "shm": choose_shm}
BACKENDS = tuple(_CHOOSERS)
# Turns are blocks of calls, not single calls: after a gloo call its thread still works and moves ranks between cores,
# which a model that uses one backend never sees. The first calls of a block are not timed.
_BLOCK_CALLS = 10
_SETTLING_CALLS = 3
# Arbitrary: a row of a small model, where no model is given.
_DEFAULT_ROW_ELEMENTS = 512
_EPS = 1e-5

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class BenchConfig:
    """What to measure. `hidden_size` is the row of the fused norm; 0 takes 512 elements or what divides the size."""

    sizes: tuple[int, ...]
    world_size: int = 2
    dtype: str = "float32"
    iterations: int = 200
    hidden_size: int = 0
    backends: tuple[str, ...] = BACKENDS

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")
        check_world_size(self.world_size)
        if self.iterations < 3:
            raise ConfigError(f"a median and its spread need 3 or more iterations, got {self.iterations}.")
        unknown = sorted(set(self.backends) - set(BACKENDS))
        if unknown or not self.backends:
            raise ConfigError(f"backends are among {', '.join(BACKENDS)}, got {list(self.backends)}.")
        for num_bytes in self.sizes:
            if num_bytes < 1 or num_bytes % self.itemsize:
                raise ConfigError(f"a size must be whole elements of {self.dtype}, got {num_bytes} bytes.")
        if not self.sizes:
            raise ConfigError("give at least one size.")
        check_largest(self.sizes)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class BenchRow:
    """One line of the table. Times are None where it did not run, and `reason` says why."""

    backend: str
    num_bytes: int
    world_size: int
    dtype: str
    fused: bool
    median_us: float | None = None
    iqr_us: float | None = None
    correct: bool | None = None
    reason: str | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, object]:
        """The row without its samples."""
        return {name: value for name, value in vars(self).items() if name != "samples_us"}


@dataclass(frozen=True)
class BenchResult:
    """All rows, how each backend was set up after measuring itself, and those measurements."""

    rows: tuple[BenchRow, ...]
    setups: dict[str, str]
    setup_timings: tuple[Timing, ...] = ()


@dataclass
class _Case:
    """One backend and operation at one size, with its inputs and what came of it."""

    backend: AllReduceBackend
    fused: bool
    source: torch.Tensor
    residual_source: torch.Tensor
    weight: torch.Tensor
    x: torch.Tensor = field(init=False)
    residual: torch.Tensor = field(init=False)
    answer: torch.Tensor = field(init=False)
    ns: list[int] = field(default_factory=list)
    correct: bool = True

    def prepare(self) -> None:
        """Inputs as at the first call; an all-reduce in place would otherwise sum its own sums."""
        self.x, self.residual = self.source.clone(), self.residual_source.clone()

    def run(self) -> int:
        """One call; how long it took, in ns."""
        start_ns = perf_counter_ns()
        if self.fused:
            self.answer = self.backend.all_reduce_residual_rmsnorm(self.x, self.residual, self.weight, _EPS)
        else:
            self.answer = self.backend.all_reduce(self.x)
        return perf_counter_ns() - start_ns

    def check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Against a float64 sum of every rank's input."""
        if not self.fused:
            self.correct &= is_sum(self.answer, inputs)
            return
        self.correct &= is_new_residual(self.residual, self.residual_source, inputs)
        self.correct &= is_norm(self.answer, self.residual, self.weight, _EPS)


def measure(groups: dict[str, Group], config: BenchConfig, on_progress: OnProgress) -> BenchResult:
    """Run on every rank, with one group per backend and one named "align"; every rank gets the same result."""
    backends, setups, timings = _create_backends(groups, config)
    aligner = (ShmBackend if "shm" in backends else GlooBackend)(groups["align"])
    rows: list[BenchRow] = []
    for index, num_bytes in enumerate(config.sizes):
        on_progress(index, len(config.sizes))
        rows += _measure_size(groups["align"].rank, backends, aligner, config, num_bytes)
    on_progress(len(config.sizes), len(config.sizes))
    for name in config.backends:
        if name not in backends:
            rows += _explain_missing(name, setups[name], config)
    aligner.all_gather(torch.zeros(1))  # nobody leaves while another still measures
    for backend in (*backends.values(), aligner):
        backend.close()
    return BenchResult(tuple(rows), setups, timings)


def _create_backends(
    groups: dict[str, Group], config: BenchConfig
) -> tuple[dict[str, AllReduceBackend], dict[str, str], tuple[Timing, ...]]:
    backends: dict[str, AllReduceBackend] = {}
    setups: dict[str, str] = {}
    timings: tuple[Timing, ...] = ()
    for name in config.backends:
        try:
            backends[name], choice = _CHOOSERS[name](groups[name])
        except FastverifyError as error:
            setups[name] = str(error)
        else:
            setups[name] = choice.reason
            timings += choice.timings
    return backends, setups, timings


def _measure_size(
    rank: int, backends: dict[str, AllReduceBackend], aligner: AllReduceBackend, config: BenchConfig, num_bytes: int
) -> list[BenchRow]:
    # Seeds 0 to world_size - 1 are the ranks' inputs; residual and weight are the same on every rank, as in a model.
    inputs = [_make_input(config, num_bytes, seed) for seed in range(config.world_size)]
    residual, weight = _make_input(config, num_bytes, seed=-1), _make_input(config, num_bytes, seed=-2)[0]
    cases = {
        (name, fused): _Case(backend, fused, inputs[rank], residual, weight)
        for name, backend in backends.items()
        for fused in (False, True)
    }
    for first in range(0, config.iterations, _BLOCK_CALLS):
        num_calls = min(_BLOCK_CALLS, config.iterations - first)
        for case in cases.values():
            _run_block(case, aligner, num_calls)
            if first == 0 or first + num_calls == config.iterations:
                case.check(inputs)
    return [_summarize(case, name, num_bytes, config, aligner) for (name, _), case in cases.items()]


def _run_block(case: _Case, aligner: AllReduceBackend, num_calls: int) -> None:
    for call in range(-_SETTLING_CALLS, num_calls):
        case.prepare()
        aligner.all_gather(torch.zeros(1))
        ns = case.run()
        if call >= 0:
            case.ns.append(ns)


def _make_input(config: BenchConfig, num_bytes: int, seed: int) -> torch.Tensor:
    """Random [rows, hidden_size] of this size, the same on whichever rank makes it."""
    num_elements = num_bytes // config.itemsize
    row_elements = math.gcd(num_elements, config.hidden_size or _DEFAULT_ROW_ELEMENTS)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_elements // row_elements, row_elements, generator=generator).to(DTYPES[config.dtype])


def _summarize(case: _Case, name: str, num_bytes: int, config: BenchConfig, aligner: AllReduceBackend) -> BenchRow:
    """Median and IQR of the per-iteration maximum over ranks; correct only if correct on every rank."""
    slowest_ns = aligner.all_gather(torch.tensor(case.ns)).amax(0)
    all_correct = bool(aligner.all_gather(torch.tensor(case.correct)).all())
    samples_us = tuple(ns_to_us(ns) for ns in slowest_ns.tolist())
    lower_us, median_us, upper_us = statistics.quantiles(samples_us, n=4)
    return BenchRow(
        backend=name,
        num_bytes=num_bytes,
        world_size=config.world_size,
        dtype=config.dtype,
        fused=case.fused,
        median_us=round(median_us, 3),
        iqr_us=round(upper_us - lower_us, 3),
        correct=all_correct,
        samples_us=samples_us,
    )


def _explain_missing(name: str, reason: str, config: BenchConfig) -> list[BenchRow]:
    return [
        BenchRow(name, num_bytes, config.world_size, config.dtype, fused, reason=reason)
        for num_bytes in config.sizes
        for fused in (False, True)
    ]
