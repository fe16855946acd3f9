"""Measures both arms of a running server: a load between two metrics pages, then medians and the anatomy of a cycle.

The anatomy is of the batch size in which the arm spent most of its time, so that a queue that fills and drains does
not blur it. Nothing is filled in that the server did not tell: cycle_ms is None where it has no cycle counters.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from fastverify.errors import ConfigError
from fastverify.servers.load import Block, Load, OnSample, interleaved_blocks, run_block
from fastverify.servers.measurement import ArmMeasurement, CollectiveCost, Sample, ServerMeasurement
from fastverify.servers.metrics import (
    CollectiveTotals,
    CycleTotals,
    MetricsPage,
    SpecStats,
    add_pages,
    read_collectives,
    read_cycles,
    read_spec_stats,
)
from fastverify.servers.server import Arm, Prompt, RunningServer, Setting
from fastverify.units import s_to_ms

ARM_PHASES: Mapping[Arm, tuple[str, ...]] = {"plain": ("plain",), "speculative": ("draft", "verify", "extend")}


def measure(
    server: RunningServer,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    repeats: int,
    arms: Sequence[Arm] = ("plain", "speculative"),
    concurrency: int = 1,
    stream: bool = False,
    num_warmups: int = 1,
    request_timeout_s: float = 120.0,
    min_load_s: float = 0.0,
    requested_settings: Mapping[str, Setting] | None = None,
    on_sample: OnSample | None = None,
) -> ServerMeasurement:
    """Run the load and return what it says about each arm.

    The first `num_warmups` prompts run once per arm before anything counts. Arms that this launch cannot serve are an
    error. Raises: ConfigError, ServerCrashError, ServerHangError, ServerError.
    """
    load = Load(tuple(prompts), num_tokens, repeats, tuple(arms), concurrency, stream, request_timeout_s, min_load_s)
    _check_arms(server, load)
    start_s = time.perf_counter()
    _warm_up(server, load, num_warmups)
    samples: dict[Arm, list[Sample]] = defaultdict(list)
    windows: dict[Arm, list[MetricsPage]] = defaultdict(list)
    for block in interleaved_blocks(load):
        before = server.metrics()
        samples[block.arm] += run_block(server, load, block, on_sample)
        windows[block.arm].append(server.metrics().since(before))
    num_draft_steps = int(server.settings().get("num_draft_steps", 0))
    return ServerMeasurement(
        requested_settings=dict(requested_settings or {}),
        settings=server.settings(),
        arms={arm: measure_arm(arm, samples[arm], add_pages(windows[arm]), num_draft_steps) for arm in load.arms},
        num_tokens=num_tokens,
        repeats=len(windows[load.arms[0]]),
        concurrency=concurrency,
        elapsed_s=time.perf_counter() - start_s,
    )


def measure_arm(arm: Arm, samples: Sequence[Sample], window: MetricsPage, num_draft_steps: int = 0) -> ArmMeasurement:
    """One arm from its samples and the growth of the server's counters while they ran.

    A page lists draft positions up to the deepest correct one; the deeper ones of `num_draft_steps` were never correct.
    """
    cycles = read_cycles(window, arm)
    main = max(cycles, key=lambda totals: totals.total_s, default=None)
    spec = read_spec_stats(window)
    collectives = [_cost(totals) for totals in read_collectives(window) if totals.phase in ARM_PHASES[arm]]
    verify = [c.per_pass for c in collectives if c.phase == "verify" and c.op.startswith("all_reduce")]
    passes = spec.num_verify_passes
    tok_s_samples = tuple(sample.tok_s for sample in samples)
    return ArmMeasurement(
        arm=arm,
        tok_s=median(tok_s_samples),
        tok_s_samples=tok_s_samples,
        output_token_ids=first_outputs(samples),
        unstable_prompt_ids=unstable_prompts(samples),
        batch=main.batch if main else 1,
        num_cycles=sum(totals.num_cycles for totals in cycles),
        cycle_ms=s_to_ms(main.total_s) / main.num_cycles if main else None,
        anatomy_ms=_anatomy_ms(main) if main else {},
        accept_length=spec.accept_length or _mean_accept_length(samples),
        correct_drafts_per_position=_survival(spec, num_draft_steps),
        num_proposed_drafts=spec.num_proposed_drafts / passes if passes else 0.0,
        collectives=tuple(collectives),
        all_reduces_per_verify=sum(verify) if verify else None,
        samples=tuple(samples),
    )


def first_outputs(samples: Sequence[Sample]) -> dict[str, tuple[int, ...]]:
    """Token ids by prompt, from the first repeat that is there."""
    outputs: dict[str, tuple[int, ...]] = {}
    for sample in sorted(samples, key=lambda sample: sample.repeat):
        outputs.setdefault(sample.prompt_id, sample.token_ids)
    return outputs


def unstable_prompts(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Prompts that were not answered alike in every repeat."""
    answers: dict[str, set[tuple[tuple[int, ...], str]]] = defaultdict(set)
    for sample in samples:
        answers[sample.prompt_id].add((sample.token_ids, sample.text))
    return tuple(sorted(prompt_id for prompt_id, seen in answers.items() if len(seen) > 1))


def _check_arms(server: RunningServer, load: Load) -> None:
    missing = [arm for arm in load.arms if arm not in server.arms()]
    if missing:
        raise ConfigError(f"this launch serves {', '.join(server.arms())}, got arm {missing[0]!r} to measure.")


def _warm_up(server: RunningServer, load: Load, num_warmups: int) -> None:
    if num_warmups:
        warm_up = Load(
            load.prompts[:num_warmups], load.num_tokens, 1, load.arms, 1, load.stream, load.request_timeout_s
        )
        for arm in load.arms:
            run_block(server, warm_up, Block(arm, repeat=0))


def _survival(spec: SpecStats, num_draft_steps: int) -> tuple[float, ...]:
    if not spec.num_verify_passes:
        return ()
    counts = spec.num_correct_drafts_per_position
    padding = (0,) * (num_draft_steps - len(counts))
    return tuple(count / spec.num_verify_passes for count in counts + padding)


def _anatomy_ms(cycles: CycleTotals) -> dict[str, float]:
    return {phase: s_to_ms(seconds) / cycles.num_cycles for phase, seconds in cycles.phases_s.items()}


def _cost(totals: CollectiveTotals) -> CollectiveCost:
    return CollectiveCost(
        phase=totals.phase,
        op=totals.op,
        per_pass=totals.count / totals.num_passes,
        bytes_per_pass=totals.num_bytes / totals.num_passes,
        ms_per_pass=s_to_ms(totals.seconds) / totals.num_passes,
    )


def _mean_accept_length(samples: Sequence[Sample]) -> float:
    """1.0 for plain decoding, which gains one token per pass."""
    lengths = [sample.accept_length for sample in samples if sample.accept_length is not None]
    return fmean(lengths) if lengths else 1.0
