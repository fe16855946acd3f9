"""A machine that exists only as a formula: what a server with these settings would measure on it.

The tests compare predictions with it. It shares no code with the cost model, and its numbers differ from the priors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastverify.servers.measurement import ArmMeasurement, CollectiveCost, ServerMeasurement
from fastverify.tuning.all_reduce_table import AllReduceTable

BASELINE: dict[str, Any] = {
    "tp_size": 2,
    "comm_backend": "gloo",
    "fuse_rmsnorm": False,
    "drafter": "eagle3",
    "draft_shape": "chain",
    "num_draft_steps": 3,
    "top_k": 1,
    "num_proposed_drafts": 3,
    "draft_placement": "sharded",
    "draft_token_exchange": "gather_logits",
}
TABLE_US = {"gloo": 330.0, "shm": 4.0}


@dataclass(frozen=True)
class Machine:
    """8 layers, 320 wide, 2 ranks. In the engine a collective takes `contention` times the table and some waiting."""

    num_layers: int = 8
    hidden_bytes: int = 1280
    contention: float = 2.0
    waiting_us: float = 15.0
    row_ms: float = 0.15
    compute_ms: float = 3.2
    norm_us: float = 25.0
    draft_ms: float = 0.35
    choice_ms: float = 0.12
    replicated: float = 1.2
    conditional: float = 0.72
    tree_gain: float = 1.1
    ngram_conditional: float = 0.4
    gloo_compute: float = 1.9
    """Compute between gloo calls over compute between shm calls."""

    def call_us(self, settings: Mapping[str, Any], num_bytes: float) -> float:
        backend = settings["comm_backend"]
        slow = self.contention if backend == "gloo" else 1.0
        return TABLE_US[backend] * slow + num_bytes / 20_000 + self.waiting_us

    def compute_factor(self, settings: Mapping[str, Any]) -> float:
        return self.gloo_compute if settings["comm_backend"] == "gloo" else 1.0

    def target_pass(self, settings: Mapping[str, Any], phase: str, rows: int) -> tuple[dict[str, float], list]:
        calls = 2 * self.num_layers + 1
        reduce_us = self.call_us(settings, rows * self.hidden_bytes)
        gather_us = self.call_us(settings, rows * 8192)
        norms_ms = calls * self.norm_us / 1000
        fused = settings["fuse_rmsnorm"]
        inside_ms = norms_ms if settings["comm_backend"] == "gloo" else 0.1 * norms_ms
        reduce_ms = calls * reduce_us / 1000 + (inside_ms if fused else 0)
        compute_ms = (self.compute_ms + self.row_ms * (rows - 1)) * self.compute_factor(settings)
        phases = {
            f"{phase}_compute": compute_ms + (0 if fused else norms_ms),
            f"{phase}_all_reduce": reduce_ms,
            f"{phase}_gather": gather_us / 1000,
        }
        bytes_each = rows * self.hidden_bytes
        if fused:
            costs = [_cost(phase, "all_reduce_residual_rmsnorm", calls, bytes_each, reduce_ms)]
        else:
            costs = [_cost(phase, "all_reduce", calls, bytes_each, reduce_ms)]
        return phases, [*costs, _cost(phase, "all_gather", 1, rows * 8192, gather_us / 1000)]

    def draft_work(
        self, settings: Mapping[str, Any], phase: str, rows: int, num_layers: int, num_choices: int
    ) -> tuple[float, list]:
        """Passes of the head's layer with 3 all-reduces each, and token choices with a gather each."""
        compute_ms = (num_layers * self.draft_ms + num_choices * self.choice_ms) * self.compute_factor(settings)
        if settings["draft_placement"] == "replicated":
            return compute_ms * self.replicated, []
        gather_bytes = rows * 8192 if settings["draft_token_exchange"] == "gather_logits" else 16
        reduce_us, gather_us = self.call_us(settings, rows * self.hidden_bytes), self.call_us(settings, gather_bytes)
        costs = [
            _cost(phase, "all_reduce", 3 * num_layers, rows * self.hidden_bytes, 3 * num_layers * reduce_us / 1000),
            _cost(phase, "all_gather", num_choices, gather_bytes, num_choices * gather_us / 1000),
        ]
        costs = [cost for cost in costs if cost.per_pass]
        return compute_ms + sum(cost.ms_per_pass for cost in costs), costs

    def survival(self, settings: Mapping[str, Any]) -> tuple[float, ...]:
        if settings["drafter"] == "ngram":
            return tuple(self.ngram_conditional**i for i in range(1, settings["num_proposed_drafts"] + 1))
        gain = self.tree_gain if settings["draft_shape"] == "tree" else 1.0
        return tuple(min(gain * self.conditional**i, 1.0) for i in range(1, settings["num_draft_steps"] + 1))

    def measure(self, changes: Mapping[str, Any] | None = None) -> ServerMeasurement:
        settings = {**BASELINE, **(changes or {})}
        arms = {"plain": self._plain(settings)}
        if settings["drafter"] != "none":
            arms["speculative"] = self._speculative(settings)
        return ServerMeasurement(
            requested_settings={},
            settings=settings,
            arms=arms,
            num_tokens=64,
            repeats=2,
            concurrency=1,
            elapsed_s=1.0,
        )

    def _plain(self, settings: Mapping[str, Any]) -> ArmMeasurement:
        phases, costs = self.target_pass(settings, "plain", 1)
        return _arm("plain", phases | {"accept": 0.1, "host": 0.2}, costs, ())

    def _speculative(self, settings: Mapping[str, Any]) -> ArmMeasurement:
        phases, costs = self.target_pass(settings, "verify", settings["num_proposed_drafts"] + 1)
        phases |= {"draft": 0.05, "extend": 0.0, "accept": 0.15, "host": 0.3}
        if settings["drafter"] == "eagle3":
            steps = settings["num_draft_steps"]
            extend_ms, extend_costs = self.draft_work(settings, "extend", 3, 1, 0)
            draft_ms, draft_costs = self.draft_work(settings, "draft", settings["top_k"], steps - 1, steps)
            phases |= {"extend": extend_ms + 0.1, "draft": draft_ms}
            costs = [*costs, *extend_costs, *draft_costs]
        if settings["draft_shape"] == "tree":
            phases["host"] += 0.3
        return _arm("speculative", phases, costs, self.survival(settings), settings["num_proposed_drafts"])

    def table(self) -> AllReduceTable:
        sizes = (1280, 8192, 65536)
        return AllReduceTable.from_records(
            {
                "backend": backend,
                "num_bytes": num_bytes,
                "world_size": 2,
                "dtype": "float32",
                "fused": fused,
                "median_us": us + num_bytes / 20_000 + (fused and (self.norm_us if backend == "gloo" else 1.5)),
                "iqr_us": us * 0.05,
                "correct": True,
                "reason": None,
            }
            for backend, us in TABLE_US.items()
            for num_bytes in sizes
            for fused in (False, True)
        )


def _cost(phase: str, op: str, count: float, bytes_each: float, ms: float) -> CollectiveCost:
    return CollectiveCost(phase=phase, op=op, per_pass=count, bytes_per_pass=count * bytes_each, ms_per_pass=ms)


def _arm(arm: Any, phases: dict[str, float], costs: list, survival: tuple, num_drafts: int = 0) -> ArmMeasurement:
    cycle_ms = sum(phases.values())
    accept_length = 1 + sum(survival)
    verify = [cost.per_pass for cost in costs if cost.phase == "verify" and cost.op.startswith("all_reduce")]
    return ArmMeasurement(
        arm=arm,
        tok_s=accept_length / cycle_ms * 1000,
        tok_s_samples=(accept_length / cycle_ms * 1000,) * 3,
        output_token_ids={"a": tuple(range(64))},
        unstable_prompt_ids=(),
        batch=1,
        num_cycles=200,
        cycle_ms=cycle_ms,
        anatomy_ms=phases,
        accept_length=accept_length,
        correct_drafts_per_position=survival,
        num_proposed_drafts=num_drafts,
        collectives=tuple(costs),
        all_reduces_per_verify=sum(verify) if verify else None,
        samples=(),
    )
