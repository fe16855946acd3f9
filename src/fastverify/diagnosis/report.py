"""Everything that the rules for a report may look at: its arms, model, machine, launch, log and evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fastverify.diagnosis.all_reduce_priors import PriorLatency, prior_latency
from fastverify.diagnosis.alpha_beta import interpolate_us
from fastverify.diagnosis.arm_readings import ArmReading, read_arms
from fastverify.diagnosis.evidence import Evidence
from fastverify.diagnosis.machine import Machine, machine_of
from fastverify.diagnosis.model_sizes import ModelSizes, sizes_of
from fastverify.diagnosis.reported import LogFacts, ReportedFacts

BENCH_SOURCE = "your benchmark (fastverify bench all-reduce)"
# Arbitrary: in a server ranks also wait for each other, which a benchmark does not show.
BENCH_SPREAD = 0.25


@dataclass(frozen=True)
class Report:
    """`evidence` has the sources of the facts; `facts` are what the evidence adds up to."""

    facts: ReportedFacts
    evidence: tuple[Evidence, ...] = ()

    @cached_property
    def arms(self) -> tuple[ArmReading, ...]:
        """Every reported arm, completed from the top of the report."""
        return read_arms(self.facts)

    @cached_property
    def machine(self) -> Machine:
        """What carries the collectives."""
        return machine_of(self.facts)

    @cached_property
    def model(self) -> ModelSizes:
        """Sizes of the target."""
        return sizes_of(self.facts)

    @property
    def log(self) -> LogFacts:
        """What the log told."""
        return self.facts.log

    @property
    def main_arm(self) -> ArmReading:
        """The arm that the verdict is about: the first that has both rates, else the first."""
        return next((arm for arm in self.arms if arm.speedup is not None), self.arms[0])

    def own_arms(self) -> tuple[ArmReading, ...]:
        """Arms of this machine, without somebody else's."""
        return tuple(arm for arm in self.arms if not arm.facts.is_reference)

    def evidence_named(self, *names: str) -> tuple[Evidence, ...]:
        """Pieces of evidence with these names, in their order; the path of a name may be left out."""
        return tuple(item for item in self.evidence if item.name in names or item.name.rpartition(".")[2] in names)

    def flag(self, *names: str) -> str | int | float | bool | None:
        """Value of the first of these settings, as resolved by the server, else as launched."""
        for name in names:
            for settings in (self.facts.launch.resolved, self.facts.launch.flags):
                for spelling in (name, name.replace("-", "_")):
                    if settings.get(spelling) is not None:
                        return settings[spelling]
        return None

    def env(self, name: str) -> str | None:
        """An environment variable of the launch."""
        return self.facts.launch.env.get(name)

    def message_bytes(self, arm: ArmReading, *, plain: bool = False) -> int | None:
        """Bytes of one all-reduce of a plain or verify pass of this arm."""
        rows = 1 if plain else arm.rows
        return None if rows is None else self.model.message_bytes(rows * arm.batch)

    def prior(self, arm: ArmReading, num_bytes: float, backend: str | None = None) -> PriorLatency | None:
        """Published time of one all-reduce on the report's fabric, by default of what carries it at present."""
        if self.machine.fabric is None or not arm.facts.tp:
            return None
        fabric, ranks = self.machine.fabric, arm.facts.tp
        present = backend or self.present_backend(arm)
        return prior_latency(fabric, ranks, num_bytes, present) or prior_latency(fabric, ranks, num_bytes)

    def bench_us(self, arm: ArmReading, backend: str, num_bytes: float) -> float | None:
        """What the user's own benchmark of as many ranks measured for this backend; None where it did not."""
        points = self.facts.bench.us.get(backend) if self.facts.bench.world_size == arm.facts.tp else None
        return interpolate_us(sorted(points.items()), num_bytes) if points else None

    def expected(self, arm: ArmReading, num_bytes: float) -> PriorLatency | None:
        """Time of one all-reduce of what carries it at present: measured on this machine, else published."""
        us = self.bench_us(arm, self.present_backend(arm), num_bytes)
        return self.prior(arm, num_bytes) if us is None else PriorLatency(us, BENCH_SPREAD, BENCH_SOURCE)

    def present_backend(self, arm: ArmReading) -> str:
        """What carries the all-reduces: as told, else the servers' own kernel where they allow it, else NCCL."""
        told = arm.facts.all_reduce_backend
        if told is not None:
            return told
        has_peers = self.machine.fabric != "host-memory"
        is_allowed = self.machine.fabric == "nvlink" or (self.machine.is_pcie and has_peers and arm.facts.tp == 2)
        is_off = self.log.custom_all_reduce_disabled is not None or self.flag("disable-custom-all-reduce") is True
        return "custom" if is_allowed and not is_off and self.server_is(("sglang", "vllm")) else "nccl"

    def server_is(self, names: Iterable[str]) -> bool:
        """Whether the report's server is one of these."""
        return (self.facts.server or "").lower() in names
