"""What the chooser measures: every backend that all ranks can open, and every launch of our own kernels worth a try.

Our backends of one memory share one workspace: push, push_two_shot and islands are launches of the same ranks. So what
is opened is a *holder*: "push" and "host" for our kernels, the backend's own name for a library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from fastverify.comm.backend import AllReduceBackend
from fastverify.comm.cuda.agreement import exchange
from fastverify.comm.cuda.launch import Protocol as LineProtocol
from fastverify.comm.gpu.backends import GpuBackendSpec
from fastverify.comm.gpu.launches import fabric_of, list_launches
from fastverify.comm.gpu.measure import Candidate, Case
from fastverify.comm.gpu.plan import Plan
from fastverify.comm.gpu.steps import Way, find_styles, has_fused
from fastverify.comm.gpu.table import NORM
from fastverify.comm.group import Group

if TYPE_CHECKING:
    from fastverify.comm.cuda.rank import CudaRank

Backends = Mapping[str, AllReduceBackend]
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
                found.append(Candidate(Way(holder, case.op, out_of_place=False), backend))
        elif backend.can_run(case.num_elements, case.dtype).ok:
            if fabric_of(holder):
                found += _list_own(holder, cast(OwnBackend, backend), names, case, world_size)
            elif case.op == "all_reduce" or has_fused(holder):
                styles = find_styles(backend, holder, case.op)
                found += [Candidate(Way(holder, case.op, out_of_place=style), backend) for style in styles]
    return found + _list_separate(opened, case, plan) if case.op == NORM else found


def apply_plan(backend: AllReduceBackend, holder: str, plan: Plan) -> None:
    """Give our own kernels the launches that were measured; nothing to do for a library."""
    if fabric_of(holder) is None:
        return
    rank = cast(OwnBackend, backend).rank
    rules, fused_rules = plan.launch_rules(holder, "all_reduce"), plan.launch_rules(holder, NORM)
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
    own = [name for name in names if fabric_of(name) == fabric]
    return [
        Candidate(Way(name, case.op, launch), backend)
        for name in own
        for launch in list_launches(name, world_size, case.num_bytes, fused=case.op == NORM)
        if launch.protocol not in backend.broken_protocols
    ]


def _list_separate(opened: Backends, case: Case, plan: Plan) -> list[Candidate]:
    """The planned sum, and the norm beside it with the contract's roundings, as AutoBackend runs it."""
    picks = plan.find("all_reduce", case.num_bytes)
    if not picks:
        return []
    pick = picks[0]
    way = Way(pick.backend, case.op, pick.launch, separate_norm=True, out_of_place=pick.out_of_place)
    return [Candidate(way, opened[holder_of(pick.backend)])]


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
