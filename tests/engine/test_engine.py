"""The engine with real rank processes: requests, cancelling, profiles, bad settings, dead ranks and owners."""

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fastverify.engine.config import EngineConfig
from fastverify.engine.engine import Engine
from fastverify.engine.request import Request, SamplingParams, TokenEvent
from fastverify.errors import ConfigError, UnsupportedError, WorkerDiedError
from tests.engine.tiny import core_of, prompts, requests, run, settings

pytestmark = pytest.mark.ranks
PROMPTS = prompts(5, seed=2)
LONG = SamplingParams(100)
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
FOREVER = Request("forever", (1, 2, 3), LONG)


def config_of(models: dict[str, str], **changes: Any) -> EngineConfig:
    return settings(models, **{"tp_size": 2, "max_batch": 3, **changes})


@pytest.fixture(scope="module")
def engine(models: dict[str, str]) -> Iterator[Engine]:
    with Engine.start(config_of(models)) as engine:
        yield engine


def collect(engine: Engine, ids: set[str]) -> dict[str, list[TokenEvent]]:
    """Events of these requests until all have finished."""
    events: dict[str, list[TokenEvent]] = {request_id: [] for request_id in ids}
    while ids:
        event = engine.next_event(timeout_s=20)
        assert event is not None, f"no event for {ids}"
        events[event.request_id].append(event)
        if event.finished:
            ids = ids - {event.request_id}
    return events


def test_more_requests_than_slots_are_served(engine: Engine, models: dict[str, str]) -> None:
    plain = run(core_of(settings(models, drafter="none")), requests(PROMPTS, 12))
    todo = [*requests(PROMPTS, 12), Request("plain", PROMPTS[0], SamplingParams(12), speculative=False)]
    for request in todo:
        engine.submit(request)
    events = collect(engine, {request.request_id for request in todo})
    outputs = {key: [t for event in value for t in event.token_ids] for key, value in events.items()}
    assert outputs == {**plain, "plain": plain["0"]}
    last = events["0"][-1]
    assert last.finish_reason == "length"
    assert last.stats is not None
    assert last.stats.num_verify_passes > 0
    assert events["plain"][-1].stats is not None
    assert events["plain"][-1].stats.num_verify_passes == 0


def test_a_running_and_a_waiting_request_can_be_cancelled(engine: Engine) -> None:
    ids = {str(index) for index in range(5)}
    for request_id in sorted(ids):
        engine.submit(Request(request_id, (1, 2, 3), LONG))
    engine.cancel("4")
    engine.cancel("1")
    events = collect(engine, ids)
    reasons = {request_id: value[-1].finish_reason for request_id, value in events.items()}
    assert reasons == {"0": "length", "1": "cancelled", "2": "length", "3": "length", "4": "cancelled"}
    assert engine.next_event(timeout_s=0.05) is None


def test_every_running_request_cancelled_leaves_the_engine_usable(engine: Engine) -> None:
    engine.submit(FOREVER)
    engine.next_event(timeout_s=20)
    engine.cancel("forever")
    collect(engine, {"forever"})
    assert engine.stats().num_running == 0
    engine.submit(Request("next", (5,), SamplingParams(2)))
    assert collect(engine, {"next"})["next"][-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Request("long", (1,) * 100, SamplingParams(29)), "100 prompt tokens and max_tokens 29"),
        (Request("foreign", (1, 48), SamplingParams(2)), r"in 0\.\.47, got 1\.\.48"),
    ],
)
def test_requests_that_cannot_run_are_refused(engine: Engine, request_: Request, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        engine.submit(request_)


def test_every_rank_writes_a_trace_with_spans(engine: Engine, tmp_path: Path) -> None:
    engine.start_profile()
    for speculative in (True, False):
        engine.submit(Request("traced", (1, 2, 3), SamplingParams(4), speculative))
        collect(engine, {"traced"})
    paths = engine.stop_profile(tmp_path / "traces")
    assert [path.name for path in paths] == ["rank-0.trace.json.gz", "rank-1.trace.json.gz"]
    for path in paths:
        names = {event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
        assert {f"fastverify.{phase}" for phase in ("prefill", "extend", "draft", "verify", "plain")} <= names
    assert engine.stop_profile(tmp_path) == []


def test_a_profile_that_cannot_be_written_is_refused_and_the_ranks_go_on(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "rank-1.trace.json.gz").mkdir()
    engine.start_profile()
    with pytest.raises(ConfigError, match=r"rank-1\.trace\.json\.gz cannot be written"):
        engine.stop_profile(tmp_path)
    engine.submit(Request("later", (1, 2, 3), SamplingParams(2)))
    assert collect(engine, {"later"})["later"][-1].finish_reason == "length"


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-30])
def test_a_tiny_temperature_is_greedy(models: dict[str, str], temperature: float) -> None:
    """Logits over it would overflow float32, and one such request would end the ranks."""
    for drafter in ("none", "eagle3"):
        core = core_of(settings(models, drafter=drafter))
        assert run(core, requests(PROMPTS[:2], 6, temperature=temperature, seed=1)) == run(
            core_of(settings(models, drafter="none")), requests(PROMPTS[:2], 6)
        )


def test_an_idle_engine_uses_no_cpu(engine: Engine) -> None:
    ranks = [child for child in psutil.Process().children() if "rank_process" in " ".join(child.cmdline())]
    assert len(ranks) == 2
    before = sum(sum(rank.cpu_times()[:2]) for rank in ranks)
    time.sleep(0.4)
    assert sum(sum(rank.cpu_times()[:2]) for rank in ranks) - before <= 0.1


def test_settings_that_the_model_refuses_are_a_users_mistake(models: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="at most the model's 512 positions, got 4096"):
        Engine.start(config_of(models, tp_size=1, max_seq_len=4096))


def test_a_model_that_cannot_run_here_keeps_its_error_class(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["GPT2LMHeadModel"], **dict.fromkeys(SIZES, 8)}), encoding="utf-8"
    )
    with pytest.raises(UnsupportedError, match="GPT2LMHeadModel is not implemented"):
        Engine.start(EngineConfig(model=str(tmp_path), tp_size=1, drafter="none", max_seq_len=8))


def test_a_signal_to_the_process_group_is_left_to_the_owner(engine: Engine) -> None:
    """A server drains on SIGTERM: its ranks must still be there."""
    for rank in rank_processes(psutil.Process()):
        rank.send_signal(signal.SIGTERM)
        rank.send_signal(signal.SIGINT)
    engine.submit(Request("after", (1, 2), SamplingParams(3)))
    assert collect(engine, {"after"})["after"][-1].finish_reason == "length"


def test_a_closed_engine_says_so(models: dict[str, str]) -> None:
    engine = Engine.start(config_of(models, tp_size=1))
    engine.close()
    engine.close()
    assert list(engine.events()) == []
    with pytest.raises(ConfigError, match="is closed"):
        engine.submit(FOREVER)


def rank_processes(of: psutil.Process) -> list[psutil.Process]:
    return [child for child in of.children() if "rank_process" in " ".join(child.cmdline())]


def segments_of(ranks: list[psutil.Process]) -> set[Path]:
    """Shared memory that the ranks have mapped, under the names it had when it was made."""
    names = {line for rank in ranks for line in Path(f"/proc/{rank.pid}/maps").read_text().splitlines()}
    return {Path("/" + line.split("/", 1)[1].removesuffix(" (deleted)")) for line in names if "/dev/shm/" in line}


def test_a_killed_rank_is_an_error_within_seconds_and_leaves_nothing(models: dict[str, str]) -> None:
    before = set(rank_processes(psutil.Process()))
    engine = Engine.start(config_of(models, comm_backend="shm"))
    ranks = [process for process in rank_processes(psutil.Process()) if process not in before]
    engine.submit(FOREVER)
    engine.next_event(timeout_s=20)
    segments = segments_of(ranks)
    assert segments
    start_s = time.monotonic()
    ranks[1].send_signal(signal.SIGKILL)
    last = collect(engine, {"forever"})["forever"][-1]
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        engine.next_event(timeout_s=20)
    assert time.monotonic() - start_s < 8
    assert last.finish_reason == "error"
    assert "SIGKILL" in (last.error or "")
    with pytest.raises(WorkerDiedError):
        engine.submit(FOREVER)
    with pytest.raises(WorkerDiedError):
        engine.stats()
    engine.close()
    assert not any(rank.is_running() for rank in ranks)
    assert not any(segment.exists() for segment in segments)


def test_the_ranks_end_when_their_owner_is_killed(models: dict[str, str]) -> None:
    code = f"""
        import time
        from fastverify.engine.config import EngineConfig
        from fastverify.engine.engine import Engine
        from fastverify.engine.request import Request, SamplingParams
        engine = Engine.start(EngineConfig(**{config_of(models).to_dict()!r}))
        engine.submit(Request("r", (1, 2), SamplingParams(100)))
        print("ready", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        ranks = rank_processes(psutil.Process(owner.pid))
        assert len(ranks) == 2
        segments = segments_of(ranks)
        owner.kill()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert alive == []
    assert not any(segment.exists() for segment in segments)
