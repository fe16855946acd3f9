"""Chooses how a group of GPUs reduces at each size, from a table measured on this machine with these ranks.

The table is kept in a file (gpu/table.py) and measured when there is none for this machine, these versions and this
environment: a few seconds, in which every backend that all ranks can open and every sensible launch of our own kernels
is checked and timed inside CUDA graphs. bfloat16 is measured; other dtypes go by their bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fastverify import env
from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.chooser import Choice
from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.gpu.auto import AutoBackend
from fastverify.comm.gpu.backends import GPU_BACKENDS, GpuBackendSpec
from fastverify.comm.gpu.candidates import apply_plan, find_able, holder_of, list_candidates, open_backends
from fastverify.comm.gpu.device import CudaGraphs, GraphDevice
from fastverify.comm.gpu.key import read_key
from fastverify.comm.gpu.launches import OWN_BACKENDS, fabric_of
from fastverify.comm.gpu.measure import Case, Lab
from fastverify.comm.gpu.plan import Plan, Step, is_hopeless, make_plan
from fastverify.comm.gpu.table import NORM, Key, Op, Row, Table, read_table, table_path, write_table
from fastverify.comm.group import Group
from fastverify.errors import EnvironmentMissingError, FastverifyError
from fastverify.units import BYTES_PER_KB, BYTES_PER_MB, format_bytes

logger = logging.getLogger(__name__)

# Verify passes of 1, 4 and 12 rows of 7168 in bfloat16 among the powers of two.
_SUM_SIZES = tuple(sorted([*(4 * BYTES_PER_KB << shift for shift in range(11)), 14_336, 57_344, 172_032]))
# Rows of a norm by hidden size. Powers of two: there the launches change that give every row a cluster of its own.
_ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
_NORM_ROWS = {4096: _ROWS, 7168: _ROWS}
_GATHER_SIZES = (4 * BYTES_PER_KB, 64 * BYTES_PER_KB, BYTES_PER_MB)
_DTYPE = torch.bfloat16
_SHARED = "nothing is measured where ranks share a GPU"


@dataclass(frozen=True)
class Shapes:
    """What to measure: bytes of the sums and gathers, and rows of the norms by hidden size."""

    sums: Sequence[int] = _SUM_SIZES
    norms: Mapping[int, Sequence[int]] = field(default_factory=lambda: _NORM_ROWS)
    gathers: Sequence[int] = _GATHER_SIZES

    def list_cases(self) -> list[tuple[Op, int, int]]:
        """(operation, bytes, hidden size); the ends and the middle of the sums first, which rule out the hopeless."""
        sums = sorted(self.sums)
        anchors = dict.fromkeys([sums[0], sums[-1], sums[len(sums) // 2]])
        norms = [
            (rows * hidden * _DTYPE.itemsize, hidden) for hidden, all_rows in self.norms.items() for rows in all_rows
        ]
        return [
            *(("all_reduce", num_bytes, 0) for num_bytes in dict.fromkeys([*anchors, *sums])),
            *((NORM, num_bytes, hidden) for num_bytes, hidden in sorted(norms)),
            *(("all_gather", num_bytes, 0) for num_bytes in self.gathers),
        ]


@dataclass(frozen=True)
class GpuChoice(Choice):
    """What was chosen, and the table behind it; `path` is the file it came from or went to."""

    table: Table | None = None
    plan: Plan | None = None
    path: Path | None = None


class GpuChooser:
    """One choice for one group. What it works with can be replaced, so that it is tested without a GPU."""

    def __init__(
        self,
        group: Group,
        *,
        specs: Mapping[str, GpuBackendSpec] = GPU_BACKENDS,
        device: GraphDevice | None = None,
        shapes: Shapes | None = None,
        folder: Path | None = None,
    ) -> None:
        self._start_s = time.monotonic()
        self._group = group
        self._specs = specs
        self._device = device or CudaGraphs(group.device)
        self._shapes = shapes or Shapes()
        # Kernels of ranks that share a GPU take turns of milliseconds: no time tells anything.
        self._is_shared = len(set(group.gpus)) < len(group.gpus) and group.device.type == "cuda"
        self._key: Key = read_key(group)
        self._path = table_path(self._key, folder or env.cache_folder())

    def choose_auto(self) -> tuple[AllReduceBackend, GpuChoice]:
        """The best for every size. Raises EnvironmentMissingError with every backend's reason where none runs."""
        if self._is_shared:
            return self._choose_unmeasured()
        kept = self._read()
        plan = make_plan(kept.rows if kept else ())
        if kept is not None and plan.steps:
            opened, unable = open_backends(self._group, plan_names(plan), self._specs)
            if not unable:
                return self._finish(opened, kept, plan, self._say_kept(kept))
            reasons = "; ".join(f"{name}: {reason}" for name, reason in unable.items())
            logger.warning("the all-reduce is measured anew, since what %s names cannot run: %s", self._path, reasons)
            _close(opened.values())
        opened, able, unable = self._open()
        table = self._measure(opened, able, unable)
        plan = make_plan(table.rows)
        if self._group.rank == 0 and plan.steps:
            write_table(self._path, self._key, table)
        return self._finish(opened, table, plan, f"measured in {table.measured_s:.1f} s, kept in {self._path}")

    def choose_named(self, name: str) -> tuple[AllReduceBackend, GpuChoice]:
        """The backend of this name, our own ones with launches that were measured. Raises where it cannot run."""
        spec = self._specs[name]
        _, unable = find_able(self._group, [spec])
        if unable:
            raise EnvironmentMissingError(f"the {name} backend cannot run: {unable[name]}. Use auto.")
        if name not in OWN_BACKENDS:
            return spec.create(self._group), GpuChoice(name, "asked for")
        if self._is_shared:
            return spec.create(self._group), GpuChoice(name, f"asked for; {_SHARED}")
        kept = self._read()
        rows = [row for row in kept.rows if row.backend == name] if kept else []
        if rows and kept is not None:
            backend, table, source = spec.create(self._group), kept, f"launches {self._say_kept(kept)}"
        else:
            backend = spec.create(self._group)
            table = self._measure({holder_of(name): backend}, [name], {})
            rows = list(table.rows)
            source = f"launches measured in {table.measured_s:.1f} s"
        plan = make_plan(rows)
        if not plan.steps.get("all_reduce"):
            backend.close()
            raise _no_right_answer(rows)
        apply_plan(backend, holder_of(name), plan)
        return backend, GpuChoice(name, f"asked for; {source}", table=table, plan=plan, path=self._path)

    def _read(self) -> Table | None:
        """Rank 0's file, on every rank."""
        kept = read_table(self._path, self._key) if self._group.rank == 0 else None
        text = exchange(self._group, kept.to_json().encode() if kept else b"")[0].decode()
        return Table.from_json(text) if text else None

    def _choose_unmeasured(self) -> tuple[AllReduceBackend, GpuChoice]:
        opened, _, unable = self._open()
        holder, backend = next(iter(opened.items()))
        _close(other for other in opened.values() if other is not backend)
        chosen = AutoBackend({holder: backend}, Plan({}))
        return chosen, GpuChoice(chosen.name, _SHARED, table=Table((), unable))

    def _open(self) -> tuple[dict[str, AllReduceBackend], list[str], dict[str, str]]:
        """Everything that can be opened, the names that may run, and why the others may not."""
        able, unable = find_able(self._group, self._specs.values())
        opened, failed = open_backends(self._group, able, self._specs)
        unable |= failed
        if not opened:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in unable.items())
            raise EnvironmentMissingError(f"no all-reduce runs between these GPUs: {reasons}.")
        return opened, able, unable

    def _measure(
        self, opened: Mapping[str, AllReduceBackend], names: Sequence[str], unable: Mapping[str, str]
    ) -> Table:
        logger.info("measuring the all-reduce of %s, which takes a few seconds", ", ".join(opened))
        start_s = time.monotonic()
        lab = Lab(self._group, self._device)
        rows: list[Row] = []
        for op, num_bytes, hidden_size in self._shapes.list_cases():
            rows += self._measure_case(lab, opened, names, rows, Case(op, num_bytes, hidden_size, _DTYPE))
        unable = {**unable, **lab.broken}
        for name, reason in unable.items():
            logger.info("all-reduce backend %s is out: %s", name, reason)
        for row in rows:
            if row.remark:
                logger.info("%s of %s by %s: %s", row.op, format_bytes(row.num_bytes), row.backend, row.remark)
        return Table(tuple(rows), unable, self._seconds_since(start_s))

    def _measure_case(
        self, lab: Lab, opened: Mapping[str, AllReduceBackend], names: Sequence[str], rows: Sequence[Row], case: Case
    ) -> tuple[Row, ...]:
        """Those that lost badly as sums at the sizes on both sides are left out."""
        candidates = list_candidates(opened, names, case, self._group.world_size, make_plan(rows))
        if case.op != "all_gather":
            num_bytes = case.num_bytes if case.op == "all_reduce" else min(case.num_bytes, max(self._shapes.sums))
            out = {name for name in (*OWN_BACKENDS, *opened) if is_hopeless(name, num_bytes, rows, "all_reduce")}
            candidates = [candidate for candidate in candidates if candidate.backend not in out]
        return lab.measure(case, candidates)

    def _finish(
        self, opened: dict[str, AllReduceBackend], table: Table, plan: Plan, source: str
    ) -> tuple[AllReduceBackend, GpuChoice]:
        """Keep what the plan needs and close the rest."""
        wanted = {holder_of(name) for name in plan_names(plan)}
        _close(backend for holder, backend in opened.items() if holder not in wanted)
        kept = {holder: backend for holder, backend in opened.items() if holder in wanted}
        if not kept:
            raise _no_right_answer(table.rows)
        for holder, backend in kept.items():
            apply_plan(backend, holder, plan)
        chosen = AutoBackend(kept, plan)
        num_wide = sum(bool(row.remark) for row in table.rows)
        wide = f"; {num_wide} of {len(table.rows)} times vary widely, see the table's remarks" if num_wide else ""
        reason = f"{describe(plan)}; {source}{wide}; ready after {self._seconds_since(self._start_s):.2f} s"
        return chosen, GpuChoice(chosen.name, reason, table=table, plan=plan, path=self._path)

    def _seconds_since(self, start_s: float) -> float:
        """The slowest rank's, so that all ranks say the same."""
        own_s = f"{time.monotonic() - start_s:.3f}".encode()
        return max(map(float, exchange(self._group, own_s)))

    def _say_kept(self, kept: Table) -> str:
        return f"from {self._path}, which took {kept.measured_s:.1f} s to measure"


def choose_gpu(group: Group, name: str = "auto") -> tuple[AllReduceBackend, GpuChoice]:
    """The backend of this name, or what is fastest at each size, for a group on GPUs; every rank calls it together."""
    with torch.cuda.device(group.device):
        chooser = GpuChooser(group)
        return chooser.choose_auto() if name == "auto" else chooser.choose_named(name)


def plan_names(plan: Plan) -> list[str]:
    """Backends that a plan needs: every winner, and one that takes any message where no winner does."""
    winners = dict.fromkeys(name for op in plan.steps for name in plan.winners(op))
    largest = plan.find("all_reduce", 1 << 62)
    takes_all = [pick.backend for pick in largest if fabric_of(pick.backend) or pick.backend == "nccl"]
    if takes_all and not set(takes_all) & set(winners):
        winners[takes_all[0]] = None
    return list(winners)


def describe(plan: Plan) -> str:
    """`push up to 512 KB, then nccl`; the same of the norm of each size of a row where it differs."""
    sums = _describe_steps(plan.steps.get("all_reduce", ()))
    norms = {row_bytes: _describe_steps(plan.steps_of(NORM, row_bytes)) for row_bytes in plan.row_sizes(NORM)}
    differing = [f"with norm of {format_bytes(rows)} rows {text}" for rows, text in norms.items() if text != sums]
    return "; ".join([sums, *differing])


def _describe_steps(steps: Sequence[Step]) -> str:
    runs: list[tuple[str, int]] = []
    for step in steps:
        name = step.picks[0].backend + (" and a norm" if step.picks[0].separate_norm else "")
        if runs and runs[-1][0] == name:
            runs[-1] = (name, step.max_bytes)
        else:
            runs.append((name, step.max_bytes))
    if not runs:
        return ""
    *earlier, (last, _) = runs
    limited = [f"{name} up to {format_bytes(max_bytes)}" for name, max_bytes in earlier]
    return ", then ".join([*limited, last])


def _no_right_answer(rows: Sequence[Row]) -> FastverifyError:
    reasons = "; ".join(dict.fromkeys(f"{row.backend}: {row.reason}" for row in rows if row.reason))
    return FastverifyError(f"no all-reduce between these GPUs gave a right answer: {reasons}.")


def _close(backends: Iterable[AllReduceBackend]) -> None:
    for backend in backends:
        backend.close()
