"""Rules on the all-reduce of the passes: vetoed fast paths, sizes above a ceiling, slower than it should be.

Published times are priors with a spread (all_reduce_priors.py); a rule that rests on one says so in its source.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastverify.diagnosis.arm_readings import ArmReading
from fastverify.diagnosis.findings import Finding
from fastverify.diagnosis.report import Report
from fastverify.diagnosis.rules.arm_groups import groups_varying, names
from fastverify.units import BYTES_PER_KB, format_bytes

_VETO = "not supported on more than two PCIe-only GPUs"
# Source: published crossovers of one-shot kernels against NCCL on PCIe: 48 KB on 8 GPUs, 120 KB on 4 (rtx6kpro wiki).
ONE_SHOT_CEILING_BYTES = {4: 120 * BYTES_PER_KB, 8: 48 * BYTES_PER_KB}
# Source: rule R-ARFLOOR of the field reports; also twice the widest spread of the priors.
MAX_OVER_PRIOR = 2.0
# The floor is a rule for short messages, where bandwidth does not count.
MAX_FLOOR_BYTES = 64 * BYTES_PER_KB
# Arbitrary: three times the noise of an all-reduce benchmark.
MIN_BACKEND_GAIN = 0.2
# Arbitrary: two machines of one kind differ less, published spreads are up to 1.25.
MAX_OVER_REFERENCE = 1.5
_PLAIN_BACKENDS = (None, "nccl", "pynccl")


def gated(report: Report) -> Iterator[Finding]:
    """R-ARGATE: the server vetoes its fast all-reduce on more than two PCIe GPUs and leaves NCCL."""
    arms = [arm for arm in report.own_arms() if arm.facts.all_reduce_backend in _PLAIN_BACKENDS]
    ranks = max([arm.facts.tp or 0 for arm in arms] + [0]) or report.machine.num_gpus or 0
    told = report.log.custom_all_reduce_disabled
    is_vetoed = told is not None and (_VETO in told or ranks > 2)
    is_likely = report.machine.is_pcie and ranks > 2 and report.server_is(("sglang", "vllm")) and bool(arms)
    if not (is_vetoed or is_likely) or _has_pcie_ipc(report) or report.machine.fabric == "host-memory":
        return
    source = "the server's log line" if is_vetoed else "SGLang and vLLM ask for NVLink between all GPUs, this is PCIe"
    yield Finding(
        rule="R-ARGATE",
        title=f"The server keeps its fast all-reduce off on {ranks or 'these'} PCIe GPUs; NCCL carries every message.",
        numbers={"num_ranks": float(ranks)},
        threshold=2.0,
        threshold_source=source,
        confidence="high" if is_vetoed else "medium",
        evidence=report.evidence_named("custom_all_reduce_disabled", "all_reduce_backends", "tp"),
        next="If GPUs reach each other (`nvidia-smi topo -p2p r`), switch the server's PCIe all-reduce on.",
        experiments=("comm.pcie-ipc",),
    )


def above_ceiling(report: Report) -> Iterator[Finding]:
    """R-ARSIZE: the verify pass's messages are longer than where one-shot kernels win."""
    for arm in report.own_arms():
        size, plain_size = report.message_bytes(arm), report.message_bytes(arm, plain=True)
        ceiling = ONE_SHOT_CEILING_BYTES.get(arm.facts.tp or 0)
        if size is None or plain_size is None or ceiling is None or not report.machine.is_pcie or size <= ceiling:
            continue
        both = plain_size > ceiling
        yield Finding(
            rule="R-ARSIZE",
            title=f"Verify messages of {format_bytes(size)} are above the {format_bytes(ceiling)} up to which one-shot "
            f"kernels win; plain ones of {format_bytes(plain_size)} are {'too' if both else 'below it'}.",
            numbers={"verify_bytes": float(size), "plain_bytes": float(plain_size), "ceiling_bytes": float(ceiling)},
            threshold=float(ceiling),
            threshold_source="published crossovers of one-shot kernels and NCCL on PCIe (rtx6kpro wiki)",
            confidence="medium",
            evidence=report.evidence_named("batch", "num_verify_tokens", "num_draft_steps", "tp"),
            next="Measure every backend at both sizes; a two-shot kernel or NCCL's LL128 may win at the longer one.",
            arms=(arm.name,),
            experiments=("comm.pcie-ipc", "nccl.ll128"),
        )


def slower_than_other(report: Report) -> Iterator[Finding]:
    """R-ARSIZE: at one message size another backend was measured faster."""
    for group in groups_varying(report.own_arms(), "all_reduce_backend"):
        arms = [arm for arm in group if arm.facts.all_reduce_us]
        for size in sorted({size for arm in arms for size in arm.facts.all_reduce_us or {}}):
            timed = [
                (arm, (arm.facts.all_reduce_us or {})[size]) for arm in arms if size in (arm.facts.all_reduce_us or {})
            ]
            (best, best_us), (worst, worst_us) = min(timed, key=lambda t: t[1]), max(timed, key=lambda t: t[1])
            if best_us > worst_us * (1 - MIN_BACKEND_GAIN):
                continue
            yield Finding(
                rule="R-ARSIZE",
                title=f"At {format_bytes(size)} `{worst.name}` takes {worst_us:.0f} us, `{best.name}` {best_us:.0f}.",
                numbers={"num_bytes": float(size), "slow_us": worst_us, "fast_us": best_us},
                threshold=MIN_BACKEND_GAIN,
                threshold_source="arbitrary: three times the noise of an all-reduce benchmark",
                confidence="high",
                evidence=report.evidence_named("all_reduce_us"),
                next=f"Use {best.facts.all_reduce_backend or best.name} at this size and check its sums.",
                arms=names((worst, best)),
            )


def above_floor(report: Report) -> Iterator[Finding]:
    """R-ARFLOOR: a short all-reduce takes more than twice what this fabric takes elsewhere."""
    for arm in report.own_arms():
        for size, us, where in _measured(report, arm):
            prior = report.prior(arm, size, "nccl")
            if prior is None or size > MAX_FLOOR_BYTES or us <= MAX_OVER_PRIOR * prior.us:
                continue
            yield Finding(
                rule="R-ARFLOOR",
                title=f"An all-reduce of {format_bytes(size)} takes {us:.0f} us {where}; {prior.us:.0f} us is what "
                "this fabric takes elsewhere.",
                numbers={"all_reduce_us": us, "prior_us": prior.us, "ratio": us / prior.us, "num_bytes": float(size)},
                threshold=MAX_OVER_PRIOR,
                threshold_source=f"twice {prior.source}",
                confidence="medium" if report.machine.is_fabric_implied else "high",
                evidence=report.evidence_named(
                    "verify_all_reduce_ms", "all_reduces_per_verify", "all_reduce_us", f"bench.us.nccl.{size}", "tp"
                ),
                next="Benchmark the all-reduce alone, in a graph: if it is fast there, ranks wait for each other; if "
                "not, look at peer access, ACS, IOMMU and NCCL_P2P_LEVEL.",
                arms=(arm.name,),
                experiments=("comm.pcie-ipc", "nccl.p2p-level"),
            )


def slower_than_reference(report: Report) -> Iterator[Finding]:
    """R-ARFLOOR: a cycle with equal acceptance is much longer than on a like machine, and ranks talk over a network."""
    references = [arm for arm in report.arms if arm.facts.is_reference and arm.cycle_ms is not None]
    for arm in report.own_arms():
        if arm.cycle_ms is None or not references or (arm.facts.tp or 1) < 2:
            continue
        best = min(references, key=lambda reference: reference.cycle_ms or 0.0)
        ratio = arm.cycle_ms / (best.cycle_ms or arm.cycle_ms)
        same_acceptance = abs((arm.accept_length or 0) - (best.accept_length or 0)) < 0.05
        if ratio < MAX_OVER_REFERENCE or not same_acceptance:
            continue
        yield Finding(
            rule="R-ARFLOOR",
            title=f"A cycle takes {arm.cycle_ms:.0f} ms here and {best.cycle_ms:.0f} ms on a like machine, with the "
            "same acceptance: it is time, not drafts, and what ranks share is the first suspect.",
            numbers={"cycle_ms": arm.cycle_ms, "reference_cycle_ms": best.cycle_ms or 0.0, "ratio": ratio},
            threshold=MAX_OVER_REFERENCE,
            threshold_source="arbitrary: two machines of one kind differ less",
            confidence="medium",
            evidence=report.evidence_named("accept_length", "speculative_tok_s", "tp"),
            next="Benchmark the all-reduce between these ranks at the message size of a verify pass, on both machines.",
            arms=names((arm, best)),
        )


def _measured(report: Report, arm: ArmReading) -> Iterator[tuple[int, float, str]]:
    """Message size, time and place of every all-reduce that was timed."""
    size = report.message_bytes(arm)
    verdict = arm.verdict
    if size is not None and verdict is not None and verdict.all_reduce_us is not None:
        yield size, verdict.all_reduce_us, "in the verify pass"
    if arm.facts.all_reduce_backend in _PLAIN_BACKENDS:
        for measured_size, us in sorted((arm.facts.all_reduce_us or {}).items()):
            yield measured_size, us, "in the benchmark"
    if arm is report.main_arm and report.facts.bench.world_size == arm.facts.tp:
        for measured_size, us in sorted(report.facts.bench.us.get("nccl", {}).items()):
            yield measured_size, us, "in the benchmark"


def _has_pcie_ipc(report: Report) -> bool:
    switches = ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC")
    wanted = any((report.env(name) or "0").lower() in ("1", "true") for name in switches)
    return wanted and any("pcie ipc" in line.lower() or "pcie_ipc" in line.lower() for line in report.log.engaged)
