"""Whether an entry of the catalogue can work on a reported server and machine, and what should be checked first.

A condition that the report does not tell is no refusal but a remark: the person who runs the experiment can look.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from fastverify.diagnosis.report import Report
from fastverify.tuning.catalogue.entry import CatalogueEntry


def refusal_of(entry: CatalogueEntry, report: Report) -> str | None:
    """Why this cannot be tried here; None where nothing speaks against it."""
    return next(_reasons(entry, report), None)


def remarks_of(entry: CatalogueEntry, report: Report) -> tuple[str, ...]:
    """What the report does not tell and the entry needs."""
    return tuple(_remarks(entry, report))


def _reasons(entry: CatalogueEntry, report: Report) -> Iterator[str]:
    version, nccl = report.facts.server_version, report.machine.dump.packages.get("nccl")
    if entry.versions.contains(version) is False:
        yield entry.gates.why if entry.versions.since == "9999" else f"it exists {entry.versions}, this is {version}"
    if entry.versions.since == "9999":
        yield entry.gates.why
    if entry.nccl.contains(nccl) is False:
        yield f"it is for NCCL {entry.nccl}, this is {nccl}"
    yield from _gate_reasons(entry, report)
    beside = [flag for flag in entry.conflict_flags if report.flag(flag) not in (None, False)]
    if beside:
        yield f"it never runs beside --{beside[0]}"
    if is_already_so(entry, report):
        yield "the server already runs with it"


def _gate_reasons(entry: CatalogueEntry, report: Report) -> Iterator[str]:
    gates, machine, arm = entry.gates, report.machine, report.main_arm
    ranks = arm.facts.tp
    why = f": {gates.why}" if gates.why else ""
    if gates.fabrics and machine.fabric is not None and machine.fabric not in gates.fabrics:
        yield f"it is for {', '.join(gates.fabrics)}, this is {machine.fabric}{why}"
    capability = machine.compute_capability
    if gates.compute_capabilities and capability is not None and capability not in gates.compute_capabilities:
        yield f"it is for compute capability {', '.join(gates.compute_capabilities)}, this is {capability}{why}"
    if ranks is not None and gates.world_sizes and ranks not in gates.world_sizes:
        yield f"it is for {', '.join(map(str, gates.world_sizes))} ranks, this has {ranks}{why}"
    if ranks is not None and ranks < gates.min_world_size:
        yield f"it needs at least {gates.min_world_size} ranks, this has {ranks}{why}"
    if gates.moe_only and report.model.is_moe is False:
        yield gates.why
    if gates.chain_only and arm.is_tree:
        yield gates.why
    method = (arm.facts.method or "").lower()
    if gates.draft_model_only and method.startswith(("ngram", "suffix")):
        yield gates.why
    if gates.speculative_only and arm.speculative_tok_s is None:
        yield gates.why
    numa = report.facts.num_numa_nodes or machine.dump.num_numa_nodes
    if numa is not None and numa < gates.min_numa_nodes:
        yield gates.why
    if gates.present_flags and not any(report.flag(flag) not in (None, False) for flag in gates.present_flags):
        yield gates.why
    for name, versions in gates.packages.items():
        if versions.contains(machine.dump.packages.get(name)) is False:
            yield f"it needs {name} {versions}, this is {machine.dump.packages[name]}"
    missing = [module for module in gates.modules if not _exists(module)]
    if missing:
        yield gates.why
    if "pcie-ipc" in entry.id and (machine.dump.p2p_read is False or machine.dump.p2p_write is False):
        yield "GPUs do not reach each other's memory here"


def _remarks(entry: CatalogueEntry, report: Report) -> Iterator[str]:
    gates = entry.gates
    if not entry.versions.is_open and entry.versions.contains(report.facts.server_version) is None:
        yield f"exists {entry.versions}: check the server's version"
    if not entry.nccl.is_open and report.machine.dump.packages.get("nccl") is None:
        yield f"for NCCL {entry.nccl}: check the loaded version"
    if gates.fabrics and report.machine.fabric is None:
        yield f"for {', '.join(gates.fabrics)}: check `nvidia-smi topo -m`"
    if gates.compute_capabilities and report.machine.compute_capability is None:
        yield f"for compute capability {', '.join(gates.compute_capabilities)}"
    for name, versions in gates.packages.items():
        if report.machine.dump.packages.get(name) is None:
            yield f"needs {name} {versions}"
    if gates.moe_only and report.model.is_moe is None:
        yield "for mixtures of experts only"


def is_already_so(entry: CatalogueEntry, report: Report) -> bool:
    """Whether every flag and variable of the entry already has its value in the present launch."""
    if not (entry.flags or entry.env) or entry.speculative_config:
        return False
    flags = all(
        str(report.flag(name)).lower() == str(value).lower() if value is not None else report.flag(name) is None
        for name, value in entry.flags.items()
    )
    has_launch = bool(report.facts.launch.flags or report.facts.launch.env or report.facts.launch.resolved)
    return has_launch and flags and all(report.env(name) == value for name, value in entry.env.items())


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
