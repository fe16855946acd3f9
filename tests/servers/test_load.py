import time

import httpx
import pytest

from fastverify.errors import ConfigError, ServerCrashError, ServerError, ServerHangError
from fastverify.servers.completion import complete
from fastverify.servers.load import Block, Load, interleaved_blocks, run_block
from fastverify.servers.measurement import Sample
from fastverify.servers.server import Prompt
from tests.servers.fake_server import FakeBehaviour, FakeServer

PROMPTS = tuple(Prompt(f"p{number}", f"prompt {number}") for number in range(4))


def run(tmp_path: object, behaviour: FakeBehaviour, load: Load) -> list[Sample]:
    server = FakeServer(lambda settings: behaviour)
    with server.launch(server.launch_spec({}), tmp_path / "server.log") as running:  # type: ignore[operator]
        return run_block(running, load, Block("speculative", 0))


def test_arms_alternate_and_every_repeat_holds_each_once() -> None:
    order = [block.arm[0] for block in interleaved_blocks(Load(PROMPTS, 8, repeats=4))]
    assert "".join(order) == "psspps" + "sp"


@pytest.mark.parametrize(
    "changes",
    [{"prompts": ()}, {"prompts": PROMPTS + PROMPTS[:1]}, {"num_tokens": 1}, {"repeats": 0}, {"concurrency": 0}],
)
def test_loads_that_cannot_be_measured(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Load(**{"prompts": PROMPTS, "num_tokens": 8, "repeats": 1, **changes})  # type: ignore[arg-type]


@pytest.mark.server
def test_crash_is_told_from_hang(tmp_path: object) -> None:
    load = Load(PROMPTS, 8, repeats=1, request_timeout_s=0.5)
    with pytest.raises(ServerCrashError, match="exit code 70(.|\n)*worker died, as asked"):
        run(tmp_path, FakeBehaviour(crash_after=2), load)
    with pytest.raises(ServerHangError, match=r"'p2', arm speculative got no answer in time"):
        run(tmp_path, FakeBehaviour(hang_after=2), load)


@pytest.mark.server
def test_server_times_are_decode_tokens_over_decode_time(tmp_path: object) -> None:
    behaviour = FakeBehaviour(per_position="1,1,1", draft_ms=6, verify_compute_ms=8)
    cycle_s = (6 + 8 + 6 + 0.2 + 1 + 0.2 + 0.4) / 1e3
    for sample in run(tmp_path, behaviour, Load(PROMPTS, 41, repeats=1)):
        # Every pass gains 4 tokens and the first token comes from prefill: 10 cycles for 40 tokens.
        assert sample.decode_s == pytest.approx(10 * cycle_s)
        assert sample.tok_s == pytest.approx(4 / cycle_s)
        assert sample.accept_length == 4.0
        assert (sample.timing_source, sample.ttft_s) == ("server", 0.01)


@pytest.mark.server
def test_client_times_exclude_the_first_chunk(tmp_path: object) -> None:
    server = FakeServer(lambda settings: FakeBehaviour(per_position="1", real_time=True, draft_ms=20))
    with (
        server.launch(server.launch_spec({}), tmp_path / "server.log") as running,  # type: ignore[operator]
        httpx.Client(base_url=running.url, trust_env=False) as client,
    ):
        body = {"prompt": "x", "max_tokens": 13, "speculative": True, "omit_stats": True}
        completion = complete(client, body, stream=True)
    assert (completion.timing_source, completion.num_tokens, completion.num_decode_tokens) == ("client", 13, 12)
    assert completion.decode_s == pytest.approx(6 * 0.0318, rel=0.3)


@pytest.mark.server
def test_answers_that_are_no_samples(tmp_path: object) -> None:
    with pytest.raises(ServerError, match="every answer has 8 tokens, got 5"):
        run(tmp_path, FakeBehaviour(short_by=3), Load(PROMPTS, 8, repeats=1))


def test_a_short_load_is_repeated_until_it_has_lasted() -> None:
    prompts = (Prompt("one", "text"),)
    short = Load(prompts, num_tokens=2, repeats=1, arms=("plain",), min_load_s=0.05)
    repeats = 0
    for block in interleaved_blocks(short):
        assert block.repeat == repeats
        repeats += 1
        time.sleep(0.02)
    assert repeats >= 3, "three times 20 ms reach 50 ms"
    assert len(list(interleaved_blocks(Load(prompts, num_tokens=2, repeats=4, arms=("plain",))))) == 4
