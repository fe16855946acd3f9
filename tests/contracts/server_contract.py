"""What every server must do for the tuner.

The file of a subclass has module-scoped fixtures `server` and `settings`; `running` (tests/servers/conftest.py) is one
launch of them for all tests that leave it running, so that slow servers can run this class too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from fastverify.errors import ConfigError, ServerCrashError, ServerError, ServerStartError
from fastverify.servers.load import Block, Load, run_block
from fastverify.servers.measure import measure
from fastverify.servers.measurement import PLAIN_PHASES, SPECULATIVE_PHASES
from fastverify.servers.metrics import read_cycles, read_spec_stats
from fastverify.servers.server import Arm, Prompt, RunningServer, Server

PROMPTS = tuple(Prompt(f"p{number}", f"def add_{number}(a, b):\n    return", "code") for number in range(3))
NUM_TOKENS = 24
WAIT_S = 10


def guard_of_newest_launch() -> psutil.Process:
    """Leader of the process group of the newest launch of this process."""
    return max(psutil.Process().children(), key=lambda process: process.create_time())


class ServerContract:
    """`bad_setting` is one that the server itself refuses."""

    bad_setting: tuple[str, Any]

    def test_settings_are_those_asked_for(self, running: RunningServer, settings: dict[str, Any]) -> None:
        resolved = running.settings()
        assert {name: resolved.get(name) for name in settings} == settings

    def test_arms_name_what_a_request_can_ask(self, running: RunningServer) -> None:
        assert running.arms()
        for arm in ("plain", "speculative"):
            if arm not in running.arms():
                with pytest.raises(ConfigError, match=arm):
                    running.request_fields(arm)

    def test_greedy_outputs_are_the_same_in_every_arm_and_repeat(self, running: RunningServer) -> None:
        load = Load(PROMPTS, NUM_TOKENS, repeats=1, arms=running.arms())
        outputs = [
            [sample.token_ids for sample in run_block(running, load, Block(arm, repeat))]
            for arm in running.arms()
            for repeat in range(2)
        ]
        assert all(output == outputs[0] for output in outputs)
        assert all(len(token_ids) == NUM_TOKENS for token_ids in outputs[0])

    @pytest.mark.parametrize("stream", [False, True])
    def test_concurrent_requests_get_their_own_answers(self, running: RunningServer, stream: bool) -> None:
        one = Load(PROMPTS, NUM_TOKENS, repeats=1, arms=("plain",))
        many = Load(PROMPTS, NUM_TOKENS, repeats=1, arms=("plain",), concurrency=3, stream=stream)
        block = Block("plain", 0)
        answers = [[sample.token_ids for sample in run_block(running, load, block)] for load in (one, many)]
        assert answers[0] == answers[1]

    def test_counters_grow_with_the_work(self, running: RunningServer) -> None:
        before = running.metrics()
        arm: Arm = running.arms()[-1]
        run_block(running, Load(PROMPTS, NUM_TOKENS, repeats=1, arms=(arm,)), Block(arm, 0))
        grown = running.metrics().since(before)
        cycles = sum(cycle.num_cycles for cycle in read_cycles(grown, arm))
        assert 0 < cycles <= len(PROMPTS) * NUM_TOKENS
        if arm == "speculative":
            spec = read_spec_stats(grown)
            assert spec.num_verify_passes == cycles
            assert sum(spec.num_correct_drafts_per_position) == spec.num_correct_drafts <= spec.num_proposed_drafts

    def test_measurement_adds_up(self, running: RunningServer) -> None:
        result = measure(running, PROMPTS, num_tokens=NUM_TOKENS, repeats=2, arms=running.arms())
        assert set(result.arms) == set(running.arms())
        for arm in result.arms.values():
            phases = SPECULATIVE_PHASES if arm.arm == "speculative" else PLAIN_PHASES
            assert set(arm.anatomy_ms) == set(phases)
            assert arm.cycle_ms == pytest.approx(sum(arm.anatomy_ms.values()))
            assert len(arm.tok_s_samples) == 2 * len(PROMPTS)
            assert set(arm.output_token_ids) == {prompt.prompt_id for prompt in PROMPTS}
            assert arm.unstable_prompt_ids == ()
            assert arm.accept_length >= 1.0
            # Decode time is cycles times their length, whoever measures it; loose, for machines that are shared.
            decode_ms = 1e3 * sum(sample.decode_s for sample in arm.samples)
            assert decode_ms == pytest.approx(arm.num_cycles * arm.cycle_ms, rel=0.5)
        assert type(result).model_validate_json(result.model_dump_json()) == result

    def test_profile_gives_files(self, running: RunningServer, tmp_path: Path) -> None:
        running.start_profile(tmp_path)
        run_block(running, Load(PROMPTS[:1], 4, repeats=1), Block("plain", 0))
        files = running.stop_profile()
        assert files
        assert all(file.is_file() and file.is_relative_to(tmp_path) for file in files)

    def test_log_and_life(self, running: RunningServer) -> None:
        assert running.is_alive()
        assert running.exit_code() is None
        assert running.log_tail().strip()

    def test_setting_that_the_server_refuses_is_a_start_error_with_its_words(
        self, server: Server, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        name, value = self.bad_setting
        children = set(psutil.Process().children(recursive=True))
        with pytest.raises(ServerStartError, match=f"before it was healthy(.|\n)*{name}"):
            server.launch(server.launch_spec({**settings, name: value}), tmp_path / "server.log")
        assert set(psutil.Process().children(recursive=True)) <= children

    def test_stop_leaves_nothing_and_a_killed_server_is_a_crash(
        self, server: Server, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        running = server.launch(server.launch_spec(settings), tmp_path / "server.log")
        try:
            guard = guard_of_newest_launch()
            family = guard.children(recursive=True)
            guard.children()[0].kill()
            with pytest.raises(ServerCrashError, match="exit code 137"):
                run_block(running, Load(PROMPTS, NUM_TOKENS, repeats=1), Block("plain", 0))
        finally:
            running.stop()
            running.stop()
        assert not running.is_alive()
        assert psutil.wait_procs([guard, *family], timeout=WAIT_S)[1] == []
        with pytest.raises(ServerError):
            running.metrics()
