"""vLLM's server log: settings, interval rates, speculation, all-reduce backends, CUDA graph modes.

`Running` is the batch at the end of an interval and the rate is its mean, so only intervals with the same batch at both
ends count. Acceptance lengths of the current engine hold the bonus token; the first engine's line gives the counts to
compute it. Sources: vLLM 0.6.3, 0.7.3, 0.11.0 and 0.33.0.
"""

from __future__ import annotations

import re

from fastverify.diagnosis.readers.decode_rates import Sample, rates_of
from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.log_messages import read_error, read_message
from fastverify.diagnosis.readers.python_text import settings_after
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder, number, positive
from fastverify.diagnosis.readers.server_settings import add_resolved, canonical, has_drafter
from fastverify.servers.server import Arm

KIND = "vLLM log"
MARKERS = (
    "Avg generation throughput:",
    "non-default args:",
    "Initializing a V1 LLM engine",
    "Initializing an LLM engine",
    "SpecDecoding metrics:",
    "Speculative metrics:",
    "all-reduce backends (in dispatch order)",
    "vLLM is using nccl",
    "vLLM API server version",
    "custom_all_reduce.py",
)
_RATE = re.compile(r"Avg generation throughput: ([\d.]{1,20}) tokens/s")
_RUNNING = re.compile(r"Running: (\d{1,9}) reqs")
_ENGINE = re.compile(r"Engine (\d{1,5})")
_LENGTH = re.compile(r"Mean acceptance length: ([\d.]{1,20})")
_POSITIONS = re.compile(r"Per-position acceptance rate: ([\d., ]{1,2000})")
_RATE_SHARE = re.compile(r"[Dd]raft acceptance rate: ([\d.]{1,20})(%?)")
_COUNTS = {
    "accepted": re.compile(r"(?:Accepted: |accepted tokens: )(\d{1,15})"),
    "drafted": re.compile(r"(?:Drafted: |draft tokens: )(\d{1,15})"),
    "emitted": re.compile(r"emitted tokens: (\d{1,15})"),
    "k": re.compile(r"speculative tokens: (\d{1,5})"),
}
_BACKENDS = re.compile(
    r"Using \[([^\]]{0,400})\] all-reduce backends \(in dispatch order\) for group '?([\w:<>-]{1,60})"
)
_VERSION = re.compile(r"(?:vLLM API server version|LLM engine \(v) ?([\w.+-]{1,60})")


def read_vllm_log(document: Document) -> Reading | None:
    """Everything that a log tells; None for a text without a line of vLLM's."""
    if not any(marker in document.text for marker in MARKERS):
        return None
    builder = ReadingBuilder(KIND, document.source)
    builder.add("server", "vllm", next(n for n, line in document.lines if any(m in line for m in MARKERS)))
    seen: set[str] = set()
    intervals = _Intervals()
    for line, text in document.lines:
        intervals.read(builder, line, text)
        _read_start(builder, line, text)
        read_message(builder, line, text)
        if "throughput:" not in text:
            read_error(builder, line, text, seen)
    builder.rates += rates_of(intervals.samples, document.source)
    return builder.build()


def _read_start(builder: ReadingBuilder, line: int, text: str) -> None:
    if "all-reduce backends" in text and (found := _BACKENDS.search(text)) and found[2].startswith("tp"):
        for name in found[1].replace("'", "").split(","):
            builder.add("log.all_reduce_backends", name.strip(), line)
    if ("API server version" in text or "LLM engine (v" in text) and (found := _VERSION.search(text)):
        builder.add("server_version", found[1].rstrip(")"), line, once=True)
    settings = _settings(text)
    if settings:
        add_resolved(builder, "vllm", settings, line)
        mode = re.search(r"'?cudagraph_mode'?: (?:<CUDAGraphMode\.|'?)([A-Z_]{4,30})", text)
        if mode:
            builder.add("log.cuda_graph_mode_requested", mode[1], line, once=True)


def _settings(text: str) -> dict[str, object]:
    for marker in ("non-default args:", "with config:", "] args:", " args: Namespace"):
        if marker in text:
            return settings_after(text, marker)
    return {}


class _Intervals:
    """Rates of the engine's statistics lines, with the acceptance of the lines that follow each."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._arm: Arm = "plain"
        self._last_batch: dict[str, int] = {}
        self._num_drafts: float | None = None

    def read(self, builder: ReadingBuilder, line: int, text: str) -> None:
        if "metrics:" in text and ("SpecDecoding" in text or "Speculative" in text):
            self._read_speculation(builder, line, text)
        elif "Avg generation throughput:" in text:
            self._read_rate(line, text)
        elif settings := _settings(text):
            found = canonical("vllm", settings)
            self._arm = "speculative" if has_drafter("vllm", found) else "plain"
            self._num_drafts = positive(found.get("speculative_config.num_speculative_tokens"))

    def _read_rate(self, line: int, text: str) -> None:
        rate, running, engine = _RATE.search(text), _RUNNING.search(text), _ENGINE.search(text)
        tok_s = number(rate[1]) if rate else None
        if tok_s is None or running is None:
            return
        key = engine[1] if engine else ""
        batch = int(running[1])
        steady = self._last_batch.get(key) == batch
        self.samples.append(Sample(line, self._arm, batch, tok_s, steady))
        self._last_batch[key] = batch

    def _read_speculation(self, builder: ReadingBuilder, line: int, text: str) -> None:
        length = self._accept_length(text)
        found = _POSITIONS.search(text)
        positions = tuple(p for p in map(number, found[1].split(",")) if p is not None) if found else ()
        share = _RATE_SHARE.search(text)
        if share and (rate := number(share[1])) is not None:
            rate = rate / 100 if share[2] else rate
            builder.add("accept_rate", rate, line, unit="share", arm="speculative", once=True)
        self._arm = "speculative"
        if not self.samples or self.samples[-1].batch == 0:
            if length is not None:
                builder.add("accept_length", length, line, unit="tokens", arm="speculative")
            return
        last = self.samples[-1]
        self.samples[-1] = Sample(
            last.line, "speculative", last.batch, last.total_tok_s, last.is_steady, length, positions
        )

    def _accept_length(self, text: str) -> float | None:
        if found := _LENGTH.search(text):
            length = number(found[1])
            return length if length is not None and length >= 1 else None
        counts = {name: number(match[1]) for name, rx in _COUNTS.items() if (match := rx.search(text))}
        drafted, drafts = counts.get("drafted"), counts.get("k") or self._num_drafts
        if not drafted or not drafts:
            return None
        passes = drafted / drafts
        if emitted := counts.get("emitted"):
            return emitted / passes if emitted >= passes else None
        accepted = counts.get("accepted")
        return None if accepted is None else 1 + accepted / passes
