"""The engine as its users see it: an owner of rank processes that takes requests and gives token events.

Thread-safe. When a rank dies, every waiting request gets an error event, every later call raises WorkerDiedError, and
the other ranks are ended; nothing is left behind, also not when the owner itself is killed. Imports no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fastverify import errors
from fastverify.engine.commands import (
    AskStats,
    Cancel,
    Close,
    Command,
    Events,
    Failed,
    ProfileReply,
    Ready,
    Report,
    StartProfile,
    StatsReply,
    StopProfile,
    Submit,
)
from fastverify.engine.config import EngineConfig
from fastverify.engine.rank_group import RankGroup
from fastverify.engine.request import Request, TokenEvent
from fastverify.engine.stats import EngineStats
from fastverify.errors import ConfigError, FastverifyError, WorkerDiedError

# Arbitrary: far above any step; a rank that does not answer in this time is stuck.
_REPLY_TIMEOUT_S = 60.0


class Engine:
    """A running engine. Use `Engine.start`, and `with` or `close`."""

    def __init__(self, config: EngineConfig, ranks: RankGroup) -> None:
        self.config = config
        self._ranks = ranks
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[TokenEvent | None] = queue.SimpleQueue()
        self._active: set[str] = set()
        self._tickets = itertools.count()
        self._replies: dict[int, tuple[Future[Any], list[ProfileReply]]] = {}
        self._num_ready = 0
        self._ready: Future[dict[str, Any]] = Future()
        self._error: Exception | None = None
        self._is_closing = False
        self._watcher = threading.Thread(target=self._watch, name="fastverify-engine", daemon=True)

    @classmethod
    def start(cls, config: EngineConfig) -> Self:
        """Start the ranks and wait until every one has loaded its models.

        Raises: ConfigError, UnsupportedError and others for settings that the model refuses; WorkerDiedError when a
        rank dies.
        """
        engine = cls(config, RankGroup(config))
        engine._watcher.start()
        try:
            engine._ready.result()
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def description(self) -> dict[str, Any]:
        """What "auto" settings became, and the sizes of the models."""
        return self._ready.result()

    def submit(self, request: Request) -> None:
        """Queue a request; its events carry its id.

        Raises: ConfigError for a prompt that does not fit, token ids the model does not know, or an id in use.
        """
        self._check(request)
        with self._lock:
            if request.request_id in self._active:
                raise ConfigError(
                    f"request ids must be unique among running requests, got {request.request_id!r} twice."
                )
            self._send(Submit(request))
            self._active.add(request.request_id)

    def cancel(self, request_id: str) -> None:
        """End a request; its last event has finish_reason "cancelled". Finished and unknown ids are ignored."""
        with self._lock:
            self._send(Cancel(request_id))

    def next_event(self, timeout_s: float | None = None) -> TokenEvent | None:
        """The next event of any request; None after `timeout_s`, or when the engine is closed.

        Raises: WorkerDiedError once the events before the death have been taken.
        """
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if event is None:
            self._events.put(None)
            if self._error is not None:
                raise self._error
        return event

    def events(self) -> Iterator[TokenEvent]:
        """Every event until the engine is closed. Raises as `next_event`."""
        while (event := self.next_event()) is not None:
            yield event

    def stats(self) -> EngineStats:
        """Everything counted so far."""
        stats: EngineStats = self._ask(lambda ticket: AskStats(ticket))
        return stats

    def start_profile(self) -> None:
        """Begin recording on every rank."""
        self._ask(lambda ticket: StartProfile(ticket))

    def stop_profile(self, folder: Path) -> list[Path]:
        """Write one trace per rank into `folder`; their paths. Empty when nothing was recording.

        Raises: ConfigError where a rank cannot write its file; OSError where the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        paths: list[str] = self._ask(lambda ticket: StopProfile(ticket, str(folder.resolve())))
        return sorted(map(Path, paths))

    def close(self) -> None:
        """End the ranks; running requests get no more events. Calling twice is harmless."""
        with self._lock:
            was_closing, self._is_closing = self._is_closing, True
            if not was_closing and self._error is None:
                self._send_quietly(Close())
        self._ranks.end(gracefully=self._error is None)
        self._watcher.join()
        self._ranks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, request: Request) -> None:
        model, sampling = self.description["model"], request.sampling
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens + sampling.max_tokens > self.config.max_seq_len:
            raise ConfigError(
                f"prompt and output must fit into {self.config.max_seq_len} tokens, got {num_prompt_tokens} prompt "
                f"tokens and max_tokens {sampling.max_tokens}. Shorten one of them or raise max_seq_len."
            )
        lowest, highest = min(request.prompt_token_ids), max(request.prompt_token_ids)
        if lowest < 0 or highest >= model["vocab_size"]:
            raise ConfigError(f"token ids must be in 0..{model['vocab_size'] - 1}, got {lowest}..{highest}.")

    def _ask(self, command: Any) -> Any:
        """Send `command(ticket)` and wait for the answer."""
        reply: Future[Any] = Future()
        with self._lock:
            ticket = next(self._tickets)
            self._replies[ticket] = (reply, [])
            self._send(command(ticket))
        try:
            return reply.result(_REPLY_TIMEOUT_S)
        except TimeoutError:
            raise WorkerDiedError(
                f"a rank must answer within {_REPLY_TIMEOUT_S:.0f} s, got no answer: it is stuck. Close the engine."
            ) from None

    def _send(self, command: Command) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closing:
            raise ConfigError("the engine is closed. Start another one.")
        self._send_quietly(command)

    def _send_quietly(self, command: Command) -> None:
        """Send; a pipe that is gone is noticed and explained by the watcher."""
        with contextlib.suppress(OSError):
            self._ranks.send(command)

    def _watch(self) -> None:
        """Hand on what the ranks report, until they have ended."""
        failures: dict[int, Failed] = {}
        for rank, report in self._ranks.reports():
            if report is None:
                break
            if isinstance(report, Failed):
                failures[rank] = report
            else:
                self._receive(rank, report)
        if not self._is_closing:
            self._die(failures)
        self._events.put(None)

    def _receive(self, rank: int, report: Report) -> None:
        match report:
            case Ready(description):
                self._num_ready += 1
                if self._num_ready == self.config.tp_size:
                    self._ranks.remove_rendezvous()
                    self._ready.set_result(description)
            case Events(events):
                for event in events:
                    if event.finished:
                        self._active.discard(event.request_id)
                    self._events.put(event)
            case StatsReply(ticket, stats):
                self._replies.pop(ticket)[0].set_result(stats)
            case ProfileReply():
                self._receive_profile(report)

    def _receive_profile(self, report: ProfileReply) -> None:
        """Every rank answers; the last one completes the call."""
        reply, reports = self._replies[report.ticket]
        reports.append(report)
        if len(reports) < self.config.tp_size:
            return
        del self._replies[report.ticket]
        errors_of_ranks = [one.error for one in reports if one.error is not None]
        if errors_of_ranks:
            reply.set_exception(ConfigError(errors_of_ranks[0]))
        else:
            reply.set_result([one.path for one in reports if one.path is not None])

    def _die(self, failures: dict[int, Failed]) -> None:
        """A rank is gone: explain it to everyone who waits, and end the others."""
        explanation = self._ranks.explain_death(failures)
        with self._lock:
            is_start = not self._ready.done()
            self._error = (_refusal(failures) if is_start else None) or WorkerDiedError(explanation)
            active, self._active = sorted(self._active), set()
            replies, self._replies = self._replies, {}
        self._ranks.end(gracefully=False)
        for request_id in active:
            self._events.put(TokenEvent(request_id, (), True, "error", str(self._error)))
        for reply, _ in replies.values():
            reply.set_exception(self._error)
        if is_start:
            self._ready.set_exception(self._error)


def _refusal(failures: dict[int, Failed]) -> FastverifyError | None:
    """The error of a rank that refused its settings, as the class it was there."""
    for failure in failures.values():
        if failure.error_type is not None:
            kind: type[FastverifyError] = getattr(errors, failure.error_type)
            return kind(failure.message)
    return None
