"""The metrics page: the engine's statistics in Prometheus text, read at scrape time.

Names and meanings are those of docs/glossary.md: correct drafts exclude the bonus token, a verify pass counts once per
request. servers/metrics.py reads this page back; tests/servers/test_metrics.py holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from fastverify.engine.request import FinishReason

PREFIX = "fastverify:"
# Of a row of "cycles": the sum of the phases is not a phase.
TOTAL = "total_s"


def metrics_page(stats: Mapping[str, Any], finish_reasons: Mapping[str, int]) -> bytes:
    """The page for `EngineStats.to_dict()` and the requests that finished, by reason."""
    registry = CollectorRegistry()
    registry.register(_Page([*_engine_families(stats), *_request_families(stats["requests"], finish_reasons)]))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def _engine_families(stats: Mapping[str, Any]) -> Iterator[Metric]:
    speculation = stats["speculation"]
    for name, text in (
        ("num_verify_passes", "Verify passes, one per request and pass."),
        ("num_proposed_drafts", "Draft tokens proposed."),
        ("num_correct_drafts", "Draft tokens the target accepted, without bonus tokens."),
    ):
        yield CounterMetricFamily(f"{PREFIX}spec_{name}", text, value=speculation[name])
    positions = _counter("spec_num_correct_drafts_per_position", "Passes whose draft i was correct.", "position")
    for position, count in enumerate(speculation["correct_drafts_per_position"]):
        positions.add_metric([str(position)], count)
    yield positions
    passes = _counter("passes", "Forward passes.", "kind")
    for kind, count in stats["passes"].items():
        passes.add_metric([kind], count)
    yield passes
    yield CounterMetricFamily(f"{PREFIX}prefill_seconds", "Seconds of prompt passes.", value=stats["prefill_s"])
    yield from _cycle_families(stats["cycles"])
    yield from _collective_families(stats["collectives"])
    for name in ("prompt", "output"):
        yield CounterMetricFamily(f"{PREFIX}{name}_tokens", f"{name.capitalize()} tokens.", value=stats["tokens"][name])


def _cycle_families(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    counts: dict[tuple[str, ...], float] = {}
    seconds: dict[tuple[str, ...], float] = {}
    for row in rows:
        key = (row["kind"], str(row["batch"]))
        counts[key] = counts.get(key, 0) + row["count"]
        for name, value in row.items():
            if name.endswith("_s") and name != TOTAL:
                phase_key = (*key, name.removesuffix("_s"))
                seconds[phase_key] = seconds.get(phase_key, 0.0) + value
    yield _filled(_counter("cycles", "Decoding cycles.", "kind", "batch"), counts)
    yield _filled(
        _counter("cycle_phase_seconds", "Seconds of each phase of a cycle.", "kind", "batch", "phase"), seconds
    )


def _collective_families(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    for field, name, text in (
        ("count", "collectives", "Collectives on rank 0."),
        ("bytes", "collective_bytes", "Bytes of rank 0's inputs."),
        ("seconds", "collective_seconds", "Seconds rank 0 spent in collectives, waiting included."),
    ):
        values: dict[tuple[str, ...], float] = {}
        for row in rows:
            key = (row["phase"], row["op"])
            values[key] = values.get(key, 0.0) + row[field]
        yield _filled(_counter(name, text, "phase", "op"), values)


def _request_families(requests: Mapping[str, int], finish_reasons: Mapping[str, int]) -> Iterator[Metric]:
    yield GaugeMetricFamily(f"{PREFIX}requests_running", "Requests in the batch.", value=requests["running"])
    yield GaugeMetricFamily(f"{PREFIX}requests_waiting", "Requests queued for the batch.", value=requests["waiting"])
    finished = _counter("request", "Finished requests.", "finish_reason")
    for reason in get_args(FinishReason):
        finished.add_metric([reason], finish_reasons.get(reason, 0))
    yield finished


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def _filled(family: CounterMetricFamily, values: Mapping[tuple[str, ...], float]) -> CounterMetricFamily:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
