"""Tables that `vllm bench serve`, SGLang's serving benchmark and its one-batch benchmark print.

Output throughput counts the first token's wait too, so time per output token stands beside it. Under speculation the
inter-token latency is the time between chunks, which is a cycle. Tables of vLLM before 0.12 do not tell whether the
server drafted: the file's name may (`plain`, `baseline`, `spec`, `eagle3`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fastverify.diagnosis.readers.arm_names import arm_from_name
from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import AnyArm, Rate, Reading, ReadingBuilder, number, positive, whole

KIND = "benchmark table"
MARKERS = ("Serving Benchmark Result", "last generation throughput:")
MAX_TABLES = 200
_ITEM = re.compile(r"[>|#\s]{0,10}([A-Za-z_][\w .()/%,-]{1,60}?):\s{1,60}([\w.+-]{1,30})(?: (?:s|tok/s))?\s{0,200}")
_THROUGHPUT = ("Output token throughput (tok/s)", "output throughput")
_LENGTHS = ("Accept length", "Acceptance length", "acc_length")
_BATCHES = ("Max request concurrency", "Maximum request concurrency", "Concurrency", "batch size")
_LATENCIES = {"tpot_ms": ("Mean TPOT (ms)",), "itl_ms": ("Median ITL (ms)", "Mean ITL (ms)")}
Table = Mapping[str, tuple[int, str]]


def read_bench_text(document: Document) -> Reading | None:
    """A rate for every table of a text."""
    if not any(marker in document.text for marker in MARKERS):
        return None
    builder = ReadingBuilder(KIND, document.source)
    for table in _tables(document):
        _add_table(builder, table)
    return builder.build()


def _tables(document: Document) -> Iterator[Table]:
    table: dict[str, tuple[int, str]] = {}
    count = 0
    for line, text in document.lines:
        starts = "Serving Benchmark Result" in text or text.strip().startswith("batch size:")
        if starts and table:
            yield table
            count += 1
            table = {}
        if count == MAX_TABLES:
            return
        found = _ITEM.fullmatch(text) if len(text) < 300 else None
        if found and (starts or table or "batch size" in found[1]):
            table.setdefault(" ".join(found[1].split()), (line, found[2]))
        elif starts:
            table = {"": (line, "")}
    if table:
        yield table


def _add_table(builder: ReadingBuilder, table: Table) -> None:
    line, tok_s = _first(table, _THROUGHPUT)
    if tok_s is None:
        return
    _, length = _first(table, _LENGTHS)
    arm = _arm(builder.source, table, length)
    latencies = {name: _first(table, labels) for name, labels in _LATENCIES.items()}
    for name, (place, value) in latencies.items():
        builder.add(name, value, place, unit="ms", arm=arm)
    share_line, share = _first(table, ("Acceptance rate (%)",))
    if share is not None and share <= 100:
        builder.add("accept_rate", share / 100, share_line, unit="share", arm="speculative")
    builder.rates.append(
        Rate(
            arm=arm,
            total_tok_s=tok_s,
            batch=_batch(table),
            source=builder.source,
            line=line,
            accept_length=length if length is not None and length >= 1 else None,
            accept_rate_per_position=_positions(table),
            is_benchmark=True,
        )
    )
    if arm == "both":
        builder.notes.append(
            f"{builder.source}:{line}: the table does not say whether the server drafted. Name the file plain-... or "
            "spec-..., or add the launch command."
        )


def _arm(source: str, table: Table, length: float | None) -> AnyArm:
    if length is not None and length >= 1:
        return "speculative"
    is_sglang = "Backend" in table and table["Backend"][1].startswith("sglang")
    named = arm_from_name(source)
    if named != "both":
        return named
    # SGLang's tools ask the server for its acceptance length and leave it out when there is none.
    return "plain" if is_sglang or "last generation throughput" in table else "both"


def _batch(table: Table) -> int:
    for label in _BATCHES:
        found = whole(table[label][1]) if label in table else None
        if found:
            return found
    _, mean = _first(table, ("Concurrency",))
    return max(1, round(mean)) if mean is not None else 1


def _positions(table: Table) -> tuple[float, ...]:
    shares: list[float] = []
    while f"Position {len(shares)}" in table:
        share = number(table[f"Position {len(shares)}"][1])
        if share is None or not 0 <= share <= 100:
            break
        shares.append(share / 100)
    return tuple(shares)


def _first(table: Table, labels: tuple[str, ...]) -> tuple[int | None, float | None]:
    for label in labels:
        if label in table and (value := positive(table[label][1])) is not None:
            return table[label][0], value
    return None, None
