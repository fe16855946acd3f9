"""What the chooser measures: every backend that all ranks can open, and every launch of our own kernels worth a try.

Our backends of one memory share one workspace: push, push_two_shot and islands are launches of the same ranks. So what
is opened is a *holder*: "push" and "host" for our kernels, the backend's own name for a library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import torch

from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.cuda.launch import Launch, candidate_launches
from fastverify.comm.cuda.launch import Protocol as LineProtocol
from fastverify.comm.gpu_backends import GpuBackendSpec
from fastverify.comm.gpu_case import EPS, Candidate, Case, Tensors
from fastverify.comm.gpu_plan import Plan, fabric_of, own_name
from fastverify.comm.gpu_table import Op
from fastverify.comm.group import Group
from fastverify.comm.rmsnorm import add_residual_quick_norm_

if TYPE_CHECKING:
    from fastverify.comm.cuda.rank import CudaRank

Backends = Mapping[str, AllReduceBackend]
# Libraries with a fused kernel; the others' adapters sum and then norm.
_FUSING = ("flashinfer",)
# Libraries that gather on the GPU; the others' adapters go by way of the CPU.
_GATHERING = ("nccl", "nccl_window")


class OwnBackend(Protocol):
    """What our own backends have beside the contract (comm/cuda/process_backend.py)."""

    rank: CudaRank

    @property
    def broken_protocols(self) -> frozenset[LineProtocol]:
        """What no launch may use here."""
        ...


def holder_of(backend: str) -> str:
    """Name under which the backend is opened."""
    return fabric_of(backend) or backend


def find_able(group: Group, specs: Iterable[GpuBackendSpec]) -> tuple[list[str], dict[str, str]]:
    """Names that every rank can run, and for the others why not."""
    own = {spec.name: "" if (support := spec.find_support(group)).ok else support.reason for spec in specs}
    unable = _merge(group, own)
    return [name for name in own if name not in unable], unable


def open_backends(
    group: Group, names: Iterable[str], specs: Mapping[str, GpuBackendSpec]
) -> tuple[dict[str, AllReduceBackend], dict[str, str]]:
    """Holders of these backends, opened, and why the others could not be; every rank calls this together."""
    opened: dict[str, AllReduceBackend] = {}
    unable: dict[str, str] = {}
    for name in names:
        holder = holder_of(name)
        if holder in opened:
            continue
        backend, reason = None, ""
        try:
            backend = _create(group, specs[name])
        except Exception as error:  # noqa: BLE001 - whatever a library raises is why it cannot be used
            reason = f"{type(error).__name__}: {error}"
        failed = _merge(group, {name: reason})
        unable |= failed
        if backend is None:
            continue
        if failed:
            backend.close()
        else:
            opened[holder] = backend
    return opened, unable


def list_candidates(opened: Backends, names: Iterable[str], case: Case, world_size: int, plan: Plan) -> list[Candidate]:
    """Ways to run the case. `names`: our own backends that may; `plan`: of the sums, for a norm beside them."""
    found = []
    for holder, backend in opened.items():
        if case.op == "all_gather":
            if fabric_of(holder) or holder in _GATHERING:
                found.append(Candidate(holder, None, _make_gather(backend)))
        elif backend.can_run(case.num_bytes // case.dtype.itemsize, case.dtype).ok:
            if fabric_of(holder):
                found += _list_own(holder, cast(OwnBackend, backend), names, case, world_size)
            elif case.op == "all_reduce" or holder in _FUSING:
                found.append(Candidate(holder, None, _make_start(backend, case.op)))
    if case.op == "all_reduce_residual_rmsnorm":
        found += _list_separate(opened, case, plan)
    return found


def apply_plan(backend: AllReduceBackend, holder: str, plan: Plan) -> None:
    """Give our own kernels the launches that were measured; nothing to do for a library."""
    if fabric_of(holder) is None:
        return
    rank = cast(OwnBackend, backend).rank
    rules, fused_rules = (plan.launch_rules(holder, op) for op in ("all_reduce", "all_reduce_residual_rmsnorm"))
    if rules or fused_rules:
        rank.set_rules(rules, fused_rules)


def _create(group: Group, spec: GpuBackendSpec) -> AllReduceBackend:
    """Our own kernels with every algorithm that the number of ranks allows."""
    fabric = fabric_of(spec.name)
    if fabric is None:
        return spec.create(group)
    backend: AllReduceBackend = import_module(spec.module).create_fabric_backend(group, fabric)
    return backend


def _list_own(fabric: str, backend: OwnBackend, names: Iterable[str], case: Case, world_size: int) -> list[Candidate]:
    is_fused = case.op == "all_reduce_residual_rmsnorm"
    launches = candidate_launches(fabric, world_size, case.num_bytes, fused=is_fused)
    return [
        Candidate(own_name(fabric, launch), launch, _make_own_start(backend.rank, launch, is_fused))
        for launch in launches
        if own_name(fabric, launch) in names and launch.protocol not in backend.broken_protocols
    ]


def _list_separate(opened: Backends, case: Case, plan: Plan) -> list[Candidate]:
    """The planned sum, and the norm beside it."""
    picks = plan.find("all_reduce", case.num_bytes)
    if not picks:
        return []
    backend, launch = opened[holder_of(picks[0].backend)], picks[0].launch
    sum_ = _make_start(backend, "all_reduce")
    if launch is not None:
        sum_ = _make_own_start(cast(OwnBackend, backend).rank, launch, is_fused=False)

    def start(tensors: Tensors) -> torch.Tensor:
        return add_residual_quick_norm_(sum_(tensors), tensors.residual, tensors.weight, EPS)

    return [Candidate(picks[0].backend, launch, start, separate_norm=True)]


def _make_start(backend: AllReduceBackend, op: Op) -> Callable[[Tensors], torch.Tensor]:
    if op == "all_reduce":
        return lambda tensors: backend.all_reduce(tensors.x)
    return lambda tensors: backend.all_reduce_residual_rmsnorm(tensors.x, tensors.residual, tensors.weight, EPS)


def _make_gather(backend: AllReduceBackend) -> Callable[[Tensors], torch.Tensor]:
    return lambda tensors: backend.all_gather(tensors.x)


def _make_own_start(rank: CudaRank, launch: Launch, is_fused: bool) -> Callable[[Tensors], torch.Tensor]:
    if not is_fused:
        return lambda tensors: rank.all_reduce(tensors.x, launch=launch)
    return lambda tensors: rank.all_reduce_residual_rmsnorm(
        tensors.x, tensors.residual, tensors.weight, EPS, launch=launch
    )


def _merge(group: Group, own: Mapping[str, str]) -> dict[str, str]:
    """Names that are not empty on some rank, with the first such rank's words."""
    ranks = [json.loads(text) for text in exchange(group, json.dumps(dict(own)).encode())]
    merged = {}
    for name in own:
        failed = [rank for rank, reasons in enumerate(ranks) if reasons[name]]
        if failed:
            where = "" if len(failed) == len(ranks) else f"on rank(s) {', '.join(map(str, failed))}: "
            merged[name] = f"{where}{ranks[failed[0]][name]}"
    return merged
