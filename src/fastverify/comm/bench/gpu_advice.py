"""What to set for a model, from the rows of a GPU benchmark: the fastest way at each message size, and the saving.

A pass makes the same all-reduce many times, so its saving is that count times the difference to NCCL under its default
setting. It assumes that ranks arrive together and nothing overlaps, as in the benchmark. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastverify.comm.bench.gpu_rows import DEFAULT_SETTING, GpuBenchRow, fastest
from fastverify.units import US_PER_MS


@dataclass(frozen=True)
class PassSize:
    """One kind of pass of a model: `num_sums` all-reduces of `num_bytes`, `num_fused` of them followed by a norm."""

    label: str
    num_bytes: int
    num_sums: int
    num_fused: int


@dataclass(frozen=True)
class Advice:
    """The fastest correct way for one kind of pass. `saving_ms` is None where NCCL's default was not measured."""

    label: str
    num_bytes: int
    fused: bool
    count: int
    way: str
    median_us: float
    launch: str | None
    baseline_us: float | None
    saving_ms: float | None

    def sentence(self) -> str:
        """For a reader in a hurry."""
        operation = "sum + residual + norm" if self.fused else "sum"
        text = f"{self.label}, {self.count} x {operation}: {self.way} at {self.median_us:.1f} us"
        if self.saving_ms is None or self.baseline_us is None:
            return f"{text}; NCCL's default was not measured"
        if self.way == "nccl":
            return f"{text}, NCCL's default; nothing to gain"
        return f"{text} saves {self.saving_ms:.2f} ms per pass against NCCL's default ({self.baseline_us:.1f} us)"


def pass_sizes(num_layers: int, row_bytes: int, batch: int, k: int) -> tuple[PassSize, ...]:
    """Plain pass, verify pass of four tokens and verify pass of k + 1 tokens, per request.

    Two all-reduces per layer, each before a norm, and one for the embedding.
    """
    kinds = {1: "plain pass", 4: "verify pass of 4 tokens"}
    kinds[k + 1] = f"verify pass of {k + 1} tokens"
    return tuple(
        PassSize(f"{kinds[tokens]}, batch {batch}", tokens * batch * row_bytes, 2 * num_layers + 1, 2 * num_layers)
        for tokens in sorted(kinds)
    )


def advise(rows: Iterable[GpuBenchRow], passes: Sequence[PassSize], mode: str) -> list[Advice]:
    """One line per pass and operation that anything correct was measured for."""
    rows = [row for row in rows if row.mode == mode]
    found = []
    for one in passes:
        for fused, count in ((False, one.num_sums), (True, one.num_fused)):
            at_size = [row for row in rows if row.num_bytes == one.num_bytes and row.fused == fused]
            best = fastest(at_size)
            if best is not None:
                found.append(_advice(one, best, _baseline_us(at_size), count))
    return found


def _advice(one: PassSize, best: GpuBenchRow, baseline_us: float | None, count: int) -> Advice:
    assert best.median_us is not None
    saving_ms = None if baseline_us is None else count * (baseline_us - best.median_us) / US_PER_MS
    return Advice(
        one.label, one.num_bytes, best.fused, count, best.way, best.median_us, best.launch, baseline_us, saving_ms
    )


def _baseline_us(rows: Iterable[GpuBenchRow]) -> float | None:
    return next((row.median_us for row in rows if row.backend == "nccl" and row.setting == DEFAULT_SETTING), None)
