"""An engine without a model: answers each request with a fixed text, token by token, from one thread.

A token is a byte. The answer of a prompt is `answer_of(prompt)`, so that many clients can check that each got its own.
Run as a program it serves HTTP with this engine, for tests of signals and exit codes.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastverify.engine.http.chat_template import ChatTemplate
from fastverify.engine.http.engine_bridge import EngineBridge
from fastverify.engine.http.generation import ModelLimits
from fastverify.engine.http.service import Service
from fastverify.engine.request import Request, RequestStats, TokenEvent
from fastverify.engine.stats import CycleKey, EngineStats, EngineTotals
from fastverify.errors import WorkerDiedError

TOKENS_PER_STEP = 3


def answer_of(prompt: bytes) -> bytes:
    return bytes(prompt[::-1]) + " é end of the answer. ".encode() * 200


class BytesDecoder:
    def __init__(self) -> None:
        self._held = b""

    def push(self, token_ids: Sequence[int]) -> str:
        self._held += bytes(token_ids)
        text = self._held.decode(errors="ignore")
        self._held = self._held[len(text.encode()) :]
        return text

    def finish(self) -> str:
        return self._held.decode(errors="replace")


class BytesCodec:
    vocab_size = 256

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decoder(self) -> BytesDecoder:
        return BytesDecoder()


class FakeEngine:
    """`step_s` is the time of a step in which every running request gains TOKENS_PER_STEP tokens."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.cancelled: list[str] = []
        self.submitted: list[Request] = []
        self.dies = False
        self.is_profiling = False
        self.totals = EngineTotals()
        self._events: queue.Queue[TokenEvent | BaseException] = queue.Queue()
        self._running: dict[str, tuple[Request, int]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        with self._lock:
            self.submitted.append(request)
            self._running[request.request_id] = (request, 0)

    def cancel(self, request_id: str) -> None:
        with self._lock:
            if self._running.pop(request_id, None) is not None:
                self.cancelled.append(request_id)
                self._events.put(TokenEvent(request_id, (), True, "cancelled"))

    def next_event(self, timeout_s: float) -> TokenEvent | None:
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            raise event
        return event

    def stats(self) -> EngineStats:
        totals = self.totals
        cycles = [cycle.to_dict(key) for key, cycle in totals.cycles.items()]
        collective = {"phase": "verify", "op": "all_reduce", "count": 17, "bytes": 100, "seconds": 0.5}
        tokens = {"prompt": totals.prompt_tokens, "output": totals.output_tokens}
        speculation = totals.speculation.to_dict()
        with self._lock:
            num_running = len(self._running)
        return EngineStats(cycles, [collective], speculation, {"verify": 1}, 0.0, tokens, num_running, 0)

    def start_profile(self) -> None:
        self.is_profiling = True

    def stop_profile(self, folder: Path) -> list[Path]:
        assert self.is_profiling
        return [folder / "rank0.json.gz"]

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            if self.dies:
                self._events.put(WorkerDiedError("rank 1 died:\nTraceback: ValueError: boom in rank 1"))
                return
            with self._lock:
                if self._running:
                    self._step()
            time.sleep(self.step_s if self._running else 0.001)

    def _step(self) -> None:
        key = CycleKey("speculative", len(self._running), 4 * len(self._running))
        self.totals.add_cycle(key, {"draft": 1_000_000, "verify_compute": 2_000_000}, 4_000_000)
        for request_id, (request, position) in list(self._running.items()):
            if b"explode" in bytes(request.prompt_token_ids):
                del self._running[request_id]
                self._events.put(TokenEvent(request_id, (), True, "error", "a bug in this request"))
                continue
            end = min(position + TOKENS_PER_STEP, request.sampling.max_tokens)
            token_ids = tuple(answer_of(bytes(request.prompt_token_ids))[position:end])
            self.totals.speculation.add(num_proposed_drafts=3, num_correct_drafts=2)
            self.totals.output_tokens += len(token_ids)
            if end == request.sampling.max_tokens:
                del self._running[request_id]
                stats = RequestStats(end, 2, 4, 6, (2, 2), 0.001, 0.5)
                self._events.put(TokenEvent(request_id, token_ids, True, "length", stats=stats))
            else:
                self._running[request_id] = (request, end)
                self._events.put(TokenEvent(request_id, token_ids))


def make_service(engine: FakeEngine, **changes: Any) -> Service:
    values: dict[str, Any] = {
        "bridge": EngineBridge(engine, max_open_requests=changes.pop("max_open_requests", 256)),
        "codec": BytesCodec(),
        "template": ChatTemplate(),
        "limits": ModelLimits("fake", max_seq_len=1024),
        "max_body_bytes": 20_000,
        "info": {"schema_version": 1, "settings": {"drafter": "eagle3"}, "resolved": {}},
        "created_s": 0,
    }
    return Service(**(values | changes))


def main() -> int:
    """Serve with a fake engine; `--die-after-s` kills its rank that long after the first request."""
    from fastverify.engine.http.app import build_app
    from fastverify.engine.http.http_config import HttpConfig
    from fastverify.engine.http.listen import bind, listen

    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--drain-timeout-s", type=float, default=10.0)
    parser.add_argument("--die-after-s", type=float, default=None)
    options = parser.parse_args()
    engine = FakeEngine(options.step_s)
    if options.die_after_s is not None:
        threading.Thread(target=_die_later, args=(engine, options.die_after_s), daemon=True).start()
    config = HttpConfig(port=0, drain_timeout_s=options.drain_timeout_s)
    try:
        listen(build_app(make_service(engine)), config, bind(config), _say)
    except WorkerDiedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _say(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def _die_later(engine: FakeEngine, delay_s: float) -> None:
    while not engine.submitted:
        time.sleep(0.01)
    time.sleep(delay_s)
    engine.dies = True


if __name__ == "__main__":
    sys.exit(main())
