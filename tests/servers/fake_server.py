"""A small real HTTP server that behaves like `fastverify serve` with timings, acceptance and failures from flags.

Time is simulated: an answer reports what its cycles would have taken, so a whole campaign runs in seconds; with
--real-time it sleeps as well. `FakeServer` is the tuner's view: a function from settings to a FakeBehaviour decides
what each launch does. Standard library only in the process itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GOLDEN = 0.6180339887498949
PLAIN = ("plain_compute", "plain_all_reduce", "plain_gather", "accept", "host")
SPECULATIVE = ("draft", "verify_compute", "verify_all_reduce", "verify_gather", "extend", "accept", "host")


@dataclass(frozen=True)
class FakeBehaviour:
    """What one launch does; every field is a flag of the process."""

    plain_compute_ms: float = 3.0
    plain_all_reduce_ms: float = 5.0
    plain_gather_ms: float = 0.2
    draft_ms: float = 3.0
    verify_compute_ms: float = 4.0
    verify_all_reduce_ms: float = 6.0
    verify_gather_ms: float = 0.2
    extend_ms: float = 1.0
    accept_ms: float = 0.2
    host_ms: float = 0.4
    per_position: str = "0.7,0.5,0.35"
    """Share of passes in which at least i + 1 drafts are correct."""
    num_layers: int = 8
    noise: float = 0.0
    """Relative spread of every request's time."""
    prefill_ms: float = 10.0
    crash_at_start: int = 0
    """Exit code before it is healthy."""
    hang_at_start: bool = False
    health_delay_s: float = 0.0
    crash_after: int = -1
    """Completion requests that are answered before the process ends with code 70."""
    hang_after: int = -1
    """Completion requests that are answered before one never is."""
    wrong_output: bool = False
    """Speculative answers differ from plain ones from their sixth token on."""
    degenerate_output: bool = False
    """Every answer repeats one token."""
    short_by: int = 0
    """Tokens that every answer lacks."""
    ignore_term: bool = False
    real_time: bool = False
    resolved: str = "{}"
    """JSON object: resolved settings that differ from the requested ones."""
    settings: str = "{}"
    """JSON object: requested settings."""

    def flags(self) -> list[str]:
        """Command line of the process."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]

    @property
    def survival(self) -> list[float]:
        return [float(part) for part in self.per_position.split(",") if part]


@dataclass
class Request:
    """One simulated request."""

    token_ids: list[int]
    cycles: list[int]
    """Tokens of each cycle."""
    num_correct: list[int]
    cycle_s: float
    speculative: bool


@dataclass
class Counters:
    """What the metrics page shows."""

    cycles: Counter[str] = field(default_factory=Counter)
    phases: Counter[tuple[str, str]] = field(default_factory=Counter)
    positions: Counter[int] = field(default_factory=Counter)
    num_proposed: int = 0
    num_requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Simulation:
    """Turns a request body into tokens, cycles and counters."""

    def __init__(self, behaviour: FakeBehaviour) -> None:
        self.behaviour = behaviour
        self.counters = Counters()
        self._random = random.Random(0)

    def run(self, body: dict[str, Any]) -> Request:
        speculative = body.get("speculative", True) and bool(self.behaviour.survival)
        num_tokens = body["max_tokens"] - self.behaviour.short_by
        cycles, num_correct = [], []
        position = zlib.crc32(body["prompt"].encode()) % 97 if speculative else 0
        while sum(cycles) < num_tokens - 1:
            position += 1
            correct = sum(p > position * GOLDEN % 1.0 for p in self.behaviour.survival) if speculative else 0
            num_correct.append(correct)
            cycles.append(min(correct + 1, num_tokens - 1 - sum(cycles)))
        cycle_s = sum(self._phases(speculative).values()) * (1 + self._random.gauss(0, self.behaviour.noise))
        request = Request(self._tokens(body, speculative), cycles, num_correct, cycle_s, speculative)
        self._count(request)
        return request

    def _phases(self, speculative: bool) -> dict[str, float]:
        names = SPECULATIVE if speculative else PLAIN
        return {name: getattr(self.behaviour, f"{name}_ms") / 1e3 for name in names}

    def _tokens(self, body: dict[str, Any], speculative: bool) -> list[int]:
        words = random.Random(zlib.crc32(body["prompt"].encode()))
        tokens = [words.randrange(4000) for _ in range(body["max_tokens"] - self.behaviour.short_by)]
        if self.behaviour.degenerate_output:
            tokens = [7] * len(tokens)
        if self.behaviour.wrong_output and speculative:
            tokens[5:] = [(token + 1) % 4000 for token in tokens[5:]]
        return tokens

    def _count(self, request: Request) -> None:
        kind = "speculative" if request.speculative else "plain"
        with self.counters.lock:
            self.counters.cycles[kind] += len(request.cycles)
            for phase, seconds in self._phases(request.speculative).items():
                self.counters.phases[kind, phase] += seconds * len(request.cycles)
            if request.speculative:
                self.counters.num_proposed += len(request.cycles) * len(self.behaviour.survival)
                for correct in request.num_correct:
                    for position in range(correct):
                        self.counters.positions[position] += 1

    def stats(self, request: Request) -> dict[str, Any]:
        num_passes = len(request.cycles) if request.speculative else 0
        num_correct = sum(request.num_correct)
        return {
            "num_output_tokens": len(request.token_ids),
            "num_verify_passes": num_passes,
            "num_correct_drafts": num_correct,
            "num_proposed_drafts": num_passes * len(self.behaviour.survival),
            "accept_length": 1 + num_correct / num_passes if num_passes else 1.0,
            "prefill_s": self.behaviour.prefill_ms / 1e3,
            "decode_s": len(request.cycles) * request.cycle_s,
        }

    def metrics(self) -> str:
        with self.counters.lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> list[str]:
        counters, lines = self.counters, []

        def add(name: str, value: float, **labels: object) -> None:
            if not any(line.startswith(f"# TYPE fastverify:{name}_total ") for line in lines):
                lines.append(f"# TYPE fastverify:{name}_total counter")
            text = ",".join(f'{key}="{label}"' for key, label in labels.items())
            lines.append(f"fastverify:{name}_total" + (f"{{{text}}}" if text else "") + f" {value}")

        passes = {"plain": counters.cycles["plain"], "verify": counters.cycles["speculative"]}
        add("spec_num_verify_passes", passes["verify"])
        add("spec_num_proposed_drafts", counters.num_proposed)
        add("spec_num_correct_drafts", sum(counters.positions.values()))
        for position in range(len(self.behaviour.survival)):
            add("spec_num_correct_drafts_per_position", counters.positions[position], position=position)
        for kind, count in passes.items():
            add("passes", count, kind=kind)
        for kind, count in counters.cycles.items():
            add("cycles", count, kind=kind, batch=1)
        for (kind, phase), seconds in counters.phases.items():
            add("cycle_phase_seconds", seconds, kind=kind, batch=1, phase=phase)
        rows = {"plain": 1, "verify": len(self.behaviour.survival) + 1}
        totals = (("collectives", 1.0), ("collective_bytes", 0.0), ("collective_seconds", 0.0))
        for name, _ in totals:
            for phase, kind in (("plain", "plain"), ("verify", "speculative")):
                count = passes[phase] * (2 * self.behaviour.num_layers + 1)
                seconds = counters.phases[kind, f"{phase}_all_reduce"]
                value = {"collectives": count, "collective_bytes": count * 1280 * rows[phase]}.get(name, seconds)
                add(name, value, phase=phase, op="all_reduce_residual_rmsnorm")
        return lines


class Handler(BaseHTTPRequestHandler):
    """The endpoints that the tuner uses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    simulation: Simulation
    start_s: float
    profile_dir: Path

    def log_message(self, format: str, *args: object) -> None:
        """Keep the log to what the tests look for."""

    def do_GET(self) -> None:
        behaviour = self.simulation.behaviour
        if self.path == "/health":
            healthy = time.monotonic() - self.start_s >= behaviour.health_delay_s
            self._answer({"status": "ok" if healthy else "starting"}, 200 if healthy else 503)
        elif self.path == "/metrics":
            self._send(self.simulation.metrics().encode(), "text/plain")
        elif self.path == "/server_info":
            settings = json.loads(behaviour.settings)
            if not behaviour.survival:
                settings["drafter"] = "none"
            document = {"schema_version": 1, "settings": settings, "resolved": json.loads(behaviour.resolved)}
            self._answer({**document, "versions": {}, "model": {}})
        else:
            self._answer({"error": {"message": f"no path {self.path}"}}, 404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v1/completions":
            self._complete(json.loads(raw))
        elif self.path == "/start_profile":
            type(self).profile_dir = Path(json.loads(raw)["output_dir"])
            self._answer({"status": "recording"})
        elif self.path == "/stop_profile":
            files = [self.profile_dir / f"rank{rank}.json.gz" for rank in range(2)]
            for file in files:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"")
            self._answer({"files": [str(file) for file in files]})

    def _complete(self, body: dict[str, Any]) -> None:
        behaviour, counters = self.simulation.behaviour, self.simulation.counters
        with counters.lock:
            counters.num_requests += 1
            number = counters.num_requests
        if 0 <= behaviour.crash_after < number:
            sys.stdout.write("fake: worker died, as asked\n")
            sys.stdout.flush()
            os._exit(70)
        if 0 <= behaviour.hang_after < number:
            time.sleep(3600)
        request = self.simulation.run(body)
        if body.get("stream"):
            self._stream(request, with_stats=not body.get("omit_stats"))
            return
        if behaviour.real_time:
            time.sleep(request.cycle_s * len(request.cycles))
        self._answer(self._chunk(request, request.token_ids, "length", whole=True))

    def _chunk(self, request: Request, token_ids: list[int], reason: str | None, whole: bool) -> dict[str, Any]:
        text = "".join(f" w{token}" for token in token_ids)
        document: dict[str, Any] = {
            "choices": [{"index": 0, "text": text, "token_ids": token_ids, "finish_reason": reason}]
        }
        if whole:
            document["usage"] = {"completion_tokens": len(request.token_ids)}
            document["fastverify"] = self.simulation.stats(request)
        return document

    def _stream(self, request: Request, with_stats: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        position = 0
        for num_tokens in [1, *request.cycles]:
            if position and self.simulation.behaviour.real_time:
                time.sleep(request.cycle_s)
            last = position + num_tokens >= len(request.token_ids)
            tokens = request.token_ids[position : position + num_tokens]
            chunk = self._chunk(request, tokens, "length" if last else None, whole=last)
            if not with_stats:
                chunk.pop("fastverify", None)
            self._event(chunk)
            position += num_tokens
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, document: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(document).encode(), "application/json", status)

    def _send(self, data: bytes, content_type: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def parse_flags(arguments: list[str]) -> FakeBehaviour:
    parser = argparse.ArgumentParser()
    for one in fields(FakeBehaviour):
        kind = type(one.default)
        parse: Any = (lambda text: text == "True") if kind is bool else kind
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=parse, default=one.default)
    return FakeBehaviour(**vars(parser.parse_args(arguments)))


def serve(behaviour: FakeBehaviour) -> None:
    import signal

    sys.stdout.write("fake: starting\n")
    sys.stdout.flush()
    if behaviour.crash_at_start:
        sys.stdout.write(f"fake: cannot start with {behaviour.settings}, as asked\n")
        sys.exit(behaviour.crash_at_start)
    if behaviour.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour.hang_at_start:
        time.sleep(3600)
    Handler.simulation = Simulation(behaviour)
    Handler.start_s = time.monotonic()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"fastverify: listening on http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=0.02)


class FakeServer:
    """The `Server` of the tuner's tests: `behaviour(settings)` says what a launch with these settings does."""

    name = "fake"

    def __init__(
        self,
        behaviour: Callable[[Mapping[str, Any]], FakeBehaviour] = lambda settings: FakeBehaviour(),
        start_timeout_s: float = 10.0,
        grace_s: float = 1.0,
    ) -> None:
        self._behaviour = behaviour
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s

    def launch_spec(self, settings: Mapping[str, Any]) -> Any:
        from fastverify.servers.server import LaunchSpec

        behaviour = replace(self._behaviour(settings), settings=json.dumps(dict(settings)))
        return LaunchSpec((sys.executable, "-S", __file__, *behaviour.flags()), {}, dict(settings))

    def launch(self, spec: Any, log_path: Path) -> Any:
        from fastverify.servers.builtin import BuiltinRunning, find_listening_url
        from fastverify.servers.process import ServerProcess

        process = ServerProcess(spec.argv, spec.env, log_path, grace_s=self._grace_s)
        url = process.wait_until_healthy(find_listening_url, "/health", self._start_timeout_s)
        return BuiltinRunning(process, url)


if __name__ == "__main__":
    serve(parse_flags(sys.argv[1:]))
