"""SGLang's server log: settings, decode lines, what was decided about collectives and CUDA graphs.

Decode lines differ between releases only in what stands between the commas, so they are read as `name: value` items.
The acceptance rate of the line is not read: before PR 23530 it counted the bonus token, and the line does not say
which. Sources: SGLang 0.5.5 and 0.5.23, and public reports of 0.5.3 to 0.5.12.
"""

from __future__ import annotations

import re

from fastverify.diagnosis.readers.decode_rates import Sample, rates_of
from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.log_messages import read_error, read_message
from fastverify.diagnosis.readers.python_text import settings_after
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder, number, whole
from fastverify.diagnosis.readers.server_settings import add_resolved

KIND = "SGLang log"
MARKERS = ("Decode batch", "server_args=", "sglang is using nccl", "max_total_num_tokens=", "[AR] ")
_RANK = re.compile(r"\b((?:DP\d{1,4} )?TP\d{1,4})\b")
_MAX_REQUESTS = re.compile(r"max_running_requests=(\d{1,9})")
_CAPTURE = re.compile(r"Capture cuda graph bs \[([\d, ]{1,20000})\]")
_GRAPH_LABELS = ("cuda graph", "cpu graph", "npu graph", "musa graph")


def read_sglang_log(document: Document) -> Reading | None:
    """Everything that a log tells; None for a text without a line of SGLang's."""
    if not any(marker in document.text for marker in MARKERS):
        return None
    builder = ReadingBuilder(KIND, document.source)
    builder.add("server", "sglang", next(n for n, line in document.lines if any(m in line for m in MARKERS)))
    seen: set[str] = set()
    decodes = _DecodeLines()
    for line, text in document.lines:
        if "Decode batch" in text:
            decodes.add_decode(line, text)
        elif "Prefill batch" in text:
            decodes.add_prefill(text)
        else:
            _read_start(builder, line, text)
            read_message(builder, line, text)
            read_error(builder, line, text, seen)
    decodes.finish(builder)
    return builder.build()


def _read_start(builder: ReadingBuilder, line: int, text: str) -> None:
    if "server_args=" in text:
        add_resolved(builder, "sglang", settings_after(text, "server_args="), line)
    if "max_total_num_tokens=" in text and (found := _MAX_REQUESTS.search(text)):
        builder.add("log.max_running_requests", whole(found[1]), line)
    if found := _CAPTURE.search(text):
        sizes = [size for size in map(whole, found[1].split(",")) if size]
        builder.add("log.cuda_graph_max_batch", max(sizes, default=None), line, once=True)
    if "sglang:" in text and (found := re.search(r"\bsglang: (\d[\w.+]{1,30})", text)):
        builder.add("server_version", found[1], line, once=True)


class _DecodeLines:
    """Samples of every data-parallel rank, and how many of them replayed a graph."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._last_batch: dict[str, int] = {}
        self._graphs: list[tuple[int, bool]] = []

    def add_decode(self, line: int, text: str) -> None:
        rank = _rank(text)
        items = _items(text)
        batch, tok_s = number(items.get("#running-req")), number(items.get("gen throughput (token/s)"))
        if graph := next((items[label] for label in _GRAPH_LABELS if label in items), None):
            self._graphs.append((line, graph not in ("False", "NONE", "None")))
        if batch is None or tok_s is None:
            return
        accept_length = number(items.get("accept len"))
        has_length = accept_length is not None and accept_length >= 1
        self._samples.append(
            Sample(
                line=line,
                arm="speculative" if "accept len" in items else "plain",
                batch=int(batch),
                total_tok_s=tok_s,
                is_steady=self._last_batch.get(rank) == batch,
                accept_length=accept_length if has_length else None,
            )
        )
        self._last_batch[rank] = int(batch)

    def add_prefill(self, text: str) -> None:
        self._last_batch.pop(_rank(text), None)

    def finish(self, builder: ReadingBuilder) -> None:
        builder.rates += rates_of(self._samples, builder.source)
        if self._graphs:
            share = sum(replayed for _, replayed in self._graphs) / len(self._graphs)
            line = next((line for line, replayed in self._graphs if not replayed), self._graphs[0][0])
            builder.add("log.cuda_graph", share > 0, line)
            builder.add("log.cuda_graph_share", share, line, unit="share")


def _rank(text: str) -> str:
    found = _RANK.search(text[:120])
    return found[1] if found else ""


def _items(text: str) -> dict[str, str]:
    """`name: value` items after the words `Decode batch`; the first of each name."""
    body = text.partition("Decode batch")[2].lstrip(". ,")
    items: dict[str, str] = {}
    for item in body.split(", "):
        name, found, value = item.rpartition(": ")
        if found:
            items.setdefault(name.strip(), value.strip(" ,."))
    return items
