"""A metrics page in Prometheus text, and what the built-in server's page says about speculation and cycles.

`MetricsPage` is any server's page; `read_spec_stats`, `read_cycles` and `read_collectives` know the names that
engine/http/metrics_page.py writes. Counters only grow, so a measurement is the difference of two pages. Other servers
have their own names: they are converted in their own file and nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from fastverify.errors import ServerError

# Samples of histograms and summaries, and of counters whose page gives no type.
GROWING = ("_total", "_sum", "_count", "_bucket")
MAX_VALUE = 1e18
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MetricsPage:
    """Every sample of one page, by name and sorted labels."""

    values: Mapping[str, Mapping[Labels, float]]
    counters: frozenset[str]

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of this name that carry these labels; 0 where there are none."""
        wanted = set(labels.items())
        return sum(value for found, value in self.values.get(name, {}).items() if wanted <= set(found))

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums of the samples that carry `labels`, keyed by the value of one more label."""
        wanted = set(labels.items())
        sums: dict[str, float] = defaultdict(float)
        for found, value in self.values.get(name, {}).items():
            if wanted <= set(found) and label in dict(found):
                sums[dict(found)[label]] += value
        return dict(sums)

    def since(self, earlier: MetricsPage) -> MetricsPage:
        """Counters as growth since an earlier page of the same server; gauges as they are now.

        Raises: ServerError where a counter fell, because the server was restarted in between.
        """
        difference = {}
        for name, now in self.values.items():
            before = earlier.values.get(name, {}) if name in self.counters else {}
            grown = {labels: value - before.get(labels, 0.0) for labels, value in now.items()}
            if name in self.counters and min(grown.values(), default=0.0) < 0:
                raise ServerError(f"counters only grow, but {name} fell: the server was restarted between two pages.")
            difference[name] = grown
        return MetricsPage(difference, self.counters)


def parse_metrics(text: str) -> MetricsPage:
    """Read a page; samples that are no finite number are left out. Raises ServerError for text of another format."""
    values: dict[str, dict[Labels, float]] = defaultdict(dict)
    counters = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                # NaN is a gauge that was never set; no counter of tokens or seconds comes near the bound.
                if not abs(sample.value) <= MAX_VALUE:
                    continue
                values[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
                if family.type == "counter" or sample.name.endswith(GROWING):
                    counters.add(sample.name)
    except ValueError as error:
        raise ServerError(f"a metrics page must be in Prometheus text format: {error}.") from error
    return MetricsPage(dict(values), frozenset(counters))


def add_pages(pages: Iterable[MetricsPage]) -> MetricsPage:
    """Sum of the differences of several windows."""
    sums: dict[str, dict[Labels, float]] = defaultdict(dict)
    counters: set[str] = set()
    for page in pages:
        counters |= page.counters
        for name, samples in page.values.items():
            for labels, value in samples.items():
                sums[name][labels] = sums[name].get(labels, 0.0) + value
    return MetricsPage(dict(sums), frozenset(counters))


@dataclass(frozen=True)
class SpecStats:
    """Counts of speculation; correct drafts exclude the bonus token."""

    num_verify_passes: int
    """One per request and pass."""
    num_proposed_drafts: int
    num_correct_drafts: int
    num_correct_drafts_per_position: tuple[int, ...]
    """Entry i: verify passes in which at least i + 1 drafts were correct."""

    @property
    def accept_length(self) -> float | None:
        """Tokens gained per verify pass, bonus included; None where none ran."""
        return 1.0 + self.num_correct_drafts / self.num_verify_passes if self.num_verify_passes else None


@dataclass(frozen=True)
class CycleTotals:
    """Seconds that the cycles of one kind and batch spent in each phase."""

    kind: str
    batch: int
    num_cycles: int
    phases_s: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """All phases together."""
        return sum(self.phases_s.values())


@dataclass(frozen=True)
class CollectiveTotals:
    """One kind of collective of one phase, and how many passes that phase had."""

    phase: str
    op: str
    num_passes: int
    count: int
    num_bytes: int
    seconds: float


def read_spec_stats(page: MetricsPage) -> SpecStats:
    """Counts of speculation on the built-in server's page."""
    positions = page.by_label("fastverify:spec_num_correct_drafts_per_position_total", "position")
    return SpecStats(
        num_verify_passes=round(page.total("fastverify:spec_num_verify_passes_total")),
        num_proposed_drafts=round(page.total("fastverify:spec_num_proposed_drafts_total")),
        num_correct_drafts=round(page.total("fastverify:spec_num_correct_drafts_total")),
        num_correct_drafts_per_position=tuple(round(positions[key]) for key in sorted(positions, key=int)),
    )


def read_cycles(page: MetricsPage, kind: str) -> list[CycleTotals]:
    """Cycles of one kind ("plain" or "speculative"), one entry per batch that ran."""
    cycles = []
    for batch, count in page.by_label("fastverify:cycles_total", "batch", kind=kind).items():
        if count > 0:
            phases = page.by_label("fastverify:cycle_phase_seconds_total", "phase", kind=kind, batch=batch)
            cycles.append(CycleTotals(kind, int(batch), round(count), phases))
    return sorted(cycles, key=lambda totals: totals.batch)


def read_collectives(page: MetricsPage) -> list[CollectiveTotals]:
    """Collectives of every phase that had a pass, in the page's order."""
    collectives = []
    for labels, count in page.values.get("fastverify:collectives_total", {}).items():
        phase, op = dict(labels)["phase"], dict(labels)["op"]
        num_passes = round(page.total("fastverify:passes_total", kind=phase))
        if count > 0 and num_passes > 0:
            num_bytes = page.total("fastverify:collective_bytes_total", phase=phase, op=op)
            seconds = page.total("fastverify:collective_seconds_total", phase=phase, op=op)
            collectives.append(CollectiveTotals(phase, op, num_passes, round(count), round(num_bytes), seconds))
    return collectives
