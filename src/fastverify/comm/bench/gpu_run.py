"""The GPU benchmark as a whole: one lane per environment, all cases of a size in turn, rows out of samples.

NCCL reads its variables once per process, so each of its settings is a lane. Cases of all lanes and backends take turns
in short blocks, forth and back, so that what drifts with time hits all alike. One number is the median over samples of
the slowest rank. A lane that fails is explained where its text is known, and where the explanation names a setting that
works, that setting joins the run. Method: docs/all-reduce.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch

from fastverify.comm.bench.gpu_lane import Case, LanePlan, LaneRun, OpenLane
from fastverify.comm.bench.gpu_rank import GpuRank
from fastverify.comm.bench.gpu_rows import (
    DEFAULT_SETTING,
    CaseKey,
    GpuBenchConfig,
    GpuBenchResult,
    GpuBenchRow,
    way_name,
)
from fastverify.comm.bench.gpu_virtual import VIRTUAL_BACKENDS, VirtualBench
from fastverify.comm.bench.lanes import Lane, LaneSpec
from fastverify.comm.gpu.backends import GPU_BACKENDS
from fastverify.comm.gpu.launches import list_launches
from fastverify.comm.gpu.steps import AUTO
from fastverify.comm.gpu.timing import summarise
from fastverify.comm.peers.nccl_settings import NCCL_SETTINGS, explain_failure, find_correction
from fastverify.errors import ConfigError, EnvironmentMissingError
from fastverify.units import format_bytes

ALL_BACKENDS = (*GPU_BACKENDS, AUTO)
ALL_SETTINGS = tuple(NCCL_SETTINGS)
# What a fused kernel is compared with, beside the libraries: its own sum, then torch's norm.
SEPARATE_TOO = ("push", "host")
_BLOCK_SAMPLES = 20
_EMPTY_SAMPLES = 40

OnProgress = Callable[[int, int, Sequence[GpuBenchRow]], None]


def choose_names(text: str, allowed: Sequence[str], default: Sequence[str], what: str) -> tuple[str, ...]:
    """Names of a comma-separated option: "" is the default, "all" all. Raises ConfigError for an unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else tuple(default)
    if names == ("all",):
        return tuple(allowed)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise ConfigError(f"{what} is one of {', '.join(allowed)} or all, got {', '.join(map(repr, unknown))}.")
    return names


def count_gpus() -> int:
    """GPUs that torch sees; starts no CUDA context."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def nccl_version() -> tuple[int, ...]:
    """Version of the NCCL that torch brings; nothing where it brings none."""
    if not torch.cuda.is_available():
        return ()
    return tuple(part for part in torch.cuda.nccl.version() if isinstance(part, int))  # type: ignore[no-untyped-call]


def run_gpu_bench(
    config: GpuBenchConfig,
    on_progress: OnProgress = lambda done, total, rows: None,
    *,
    limit_s: float | None = None,
    plans: Sequence[LanePlan] | None = None,
    open_lane: OpenLane = Lane,
) -> GpuBenchResult:
    """Measure; `on_progress` gets the rows so far after each size. After `limit_s` no further size is begun."""
    runs = _Runs(config, open_lane, plan_lanes(config) if plans is None else plans)
    rows: list[GpuBenchRow] = []
    start_s = time.monotonic()
    done = 0
    try:
        empty_us = runs.time_empty()
        for num_bytes in config.sizes:
            if limit_s is not None and time.monotonic() - start_s > limit_s:
                break
            on_progress(done, len(config.sizes), rows)
            rows += _measure_size(runs, num_bytes)
            done += 1
        on_progress(done, len(config.sizes), rows)
    finally:
        runs.close()
    remarks = (*_remarks(config, done), *_row_remarks(rows))
    return GpuBenchResult(tuple(rows), runs.setups(), empty_us, remarks)


def plan_lanes(config: GpuBenchConfig) -> list[LanePlan]:
    """One lane for all backends as the environment is, one per further NCCL setting, one for the chooser."""
    if config.virtual:
        spec = LaneSpec("virtual", 1, partial(VirtualBench, config), {"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
        return [LanePlan(spec, config.backends)]
    plans = []
    backends = tuple(name for name in config.backends if name != AUTO)
    has_nccl = "nccl" in backends
    if has_nccl and DEFAULT_SETTING not in config.nccl_settings:
        backends = tuple(name for name in backends if name != "nccl")
    if backends:
        spec = _spec(config, "default", NCCL_SETTINGS[DEFAULT_SETTING].env)
        plans.append(LanePlan(spec, backends, DEFAULT_SETTING if "nccl" in backends else None))
    if has_nccl:
        plans += [plan_setting(config, name) for name in config.nccl_settings if name != DEFAULT_SETTING]
    if AUTO in config.backends:
        plans.append(LanePlan(_spec(config, AUTO, NCCL_SETTINGS[DEFAULT_SETTING].env), (AUTO,)))
    return plans


def plan_setting(config: GpuBenchConfig, name: str) -> LanePlan:
    """The lane of one NCCL setting; where it means nothing to this NCCL, why."""
    setting = NCCL_SETTINGS[name]
    support = setting.find_support(nccl_version(), config.world_size)
    return LanePlan(_spec(config, f"nccl-{name}", setting.env), ("nccl",), name, support.reason)


def _spec(config: GpuBenchConfig, name: str, env: dict[str, str]) -> LaneSpec:
    return LaneSpec(name, config.world_size, partial(GpuRank, config), env)


class _Runs:
    """The lanes of a run, and those that an explained failure adds."""

    def __init__(self, config: GpuBenchConfig, open_lane: OpenLane, plans: Sequence[LanePlan]) -> None:
        self.config = config
        self._open_lane = open_lane
        self.runs = [LaneRun(plan, open_lane, self._explain) for plan in plans]

    def time_empty(self) -> float | None:
        """Median time of an empty kernel in the first lane that stands."""
        for run in self.runs:
            samples_us = run.time_empty(_EMPTY_SAMPLES)
            if samples_us:
                return statistics.median(samples_us)
        return None

    def setups(self) -> dict[str, str]:
        """How each way was set up; for one that never was, why not."""
        texts = {}
        for run in self.runs:
            for name in run.plan.backends:
                reason = run.reason_against(CaseKey(name, 0, False, "graph"))
                setting = run.plan.setting if name == "nccl" else None
                summary = NCCL_SETTINGS[setting].summary if setting else ""
                text = run.setups.get(name) or f"did not run: {reason}"
                texts[way_name(name, setting)] = f"{text} ({summary})" if summary else text
        return texts

    def close(self) -> None:
        """End every lane."""
        for run in self.runs:
            run.close()

    def _explain(self, run: LaneRun, text: str) -> str | None:
        """NCCL's failures that users meet, and the setting that avoids them, which joins the run."""
        if "nccl" not in run.plan.backends or run.plan.setting is None:
            return None
        setting = NCCL_SETTINGS[run.plan.setting]
        corrected = find_correction(setting, text, nccl_version())
        if corrected and all(other.plan.setting != corrected.name for other in self.runs):
            plan = plan_setting(self.config, corrected.name)
            self.runs.append(LaneRun(plan, self._open_lane, self._explain))
        return explain_failure(setting, text, nccl_version())


def _measure_size(runs: _Runs, num_bytes: int) -> list[GpuBenchRow]:
    config = runs.config
    rows: list[GpuBenchRow] = []
    for mode, fused in product(config.modes, (False, True)):
        cases: list[Case] = []
        index = 0
        while index < len(runs.runs):  # a failure may append a run
            for key in _keys(config, runs.runs[index], num_bytes, fused, mode):
                cases.append(Case(runs.runs[index], key))
                runs.runs[index].prepare(cases[-1])
            index += 1
        _take_turns(cases, config.iterations)
        for case in cases:
            case.run.finish(case)
        rows += [_row(config, case) for case in cases]
    return rows


def _keys(config: GpuBenchConfig, run: LaneRun, num_bytes: int, fused: bool, mode: str) -> list[CaseKey]:
    keys = []
    for name in run.plan.backends:
        keys.append(CaseKey(name, num_bytes, fused, mode))
        if fused and name in SEPARATE_TOO:
            keys.append(CaseKey(name, num_bytes, fused, mode, separate=True))
        if config.tune and mode == "graph":
            tried = list_launches(name, config.world_size, num_bytes, fused=fused)
            keys += [CaseKey(name, num_bytes, fused, mode, number) for number in range(len(tried))]
    return keys


def _take_turns(cases: Sequence[Case], iterations: int) -> None:
    """Blocks of samples, every second round backwards."""
    for number, first in enumerate(range(0, iterations, _BLOCK_SAMPLES)):
        for case in cases if number % 2 == 0 else reversed(cases):
            if case.reason is None:
                case.run.turn(case, min(_BLOCK_SAMPLES, iterations - first))


def _row(config: GpuBenchConfig, case: Case) -> GpuBenchRow:
    key, reason = case.key, case.reason
    setting = case.run.plan.setting if key.backend == "nccl" else None
    head = (key.row_backend, key.num_bytes, config.world_size, config.dtype, key.fused, key.mode, setting, case.launch)
    if reason is not None or len(case.samples_us) < 2:
        reason = reason or "no sample was taken"
        return GpuBenchRow(*head, case.num_calls, reason=reason, is_candidate=key.candidate is not None)
    spread = summarise(case.samples_us)
    return GpuBenchRow(
        *head,
        case.num_calls,
        median_us=spread.median_us,
        iqr_us=spread.iqr_us,
        correct=case.correct,
        samples_us=tuple(case.samples_us),
        is_candidate=key.candidate is not None,
        remark=spread.remark or None,
    )


def _remarks(config: GpuBenchConfig, num_done: int) -> tuple[str, ...]:
    """What a reader must know before comparing the times with others."""
    cold = (
        "cold L2: every call of a graph has inputs of its own, all written out of the cache before each sample"
        if config.cold_l2
        else "warm L2: every call works on what the one before left in the cache"
    )
    remarks = [cold]
    if config.virtual:
        remarks.append("virtual ranks: one process, one GPU, no link between ranks; NCCL has no rival here")
    elif config.world_size > count_gpus():
        remarks.append(
            f"{config.world_size} ranks share {count_gpus()} GPU(s): their kernels run in turns, so only the checks "
            f"mean something, the times nothing"
        )
    if num_done < len(config.sizes):
        remarks.append(f"out of time after {num_done} of {len(config.sizes)} sizes")
    return tuple(remarks)


def _row_remarks(rows: Sequence[GpuBenchRow]) -> list[str]:
    """Times whose samples lie far apart."""
    return [
        f"{row.way}{f' [{row.launch}]' if row.is_candidate else ''}, {'fused' if row.fused else 'sum'} of "
        f"{format_bytes(row.num_bytes)} ({row.mode}): {row.remark}"
        for row in rows
        if row.remark
    ]


def require_gpus(config: GpuBenchConfig) -> None:
    """Raises EnvironmentMissingError where torch sees no GPU, ConfigError where virtual ranks cannot run something."""
    if count_gpus() == 0:
        raise EnvironmentMissingError(
            "the GPU benchmark needs an NVIDIA GPU that torch sees, found none. Use --device cpu."
        )
    unknown = [name for name in config.backends if config.virtual and name not in VIRTUAL_BACKENDS]
    if unknown:
        raise ConfigError(
            f"virtual ranks run {', '.join(VIRTUAL_BACKENDS)}, got {', '.join(unknown)}, which need a process per rank."
        )
