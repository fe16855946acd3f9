"""Measurements of a server whose timings are known."""

from pathlib import Path

import pytest

from fastverify.errors import ConfigError
from fastverify.servers.measure import first_outputs, measure, measure_arm, unstable_prompts
from fastverify.servers.measurement import Sample, ServerMeasurement
from fastverify.servers.metrics import parse_metrics
from fastverify.servers.server import Arm, Prompt
from tests.servers.fake_server import FakeBehaviour, FakeServer

PROMPTS = tuple(Prompt(f"p{number}", f"prompt {number}") for number in range(3))


def sample(prompt_id: str, repeat: int, *token_ids: int, arm: Arm = "plain") -> Sample:
    return Sample(
        arm=arm,
        prompt_id=prompt_id,
        repeat=repeat,
        num_tokens=len(token_ids),
        token_ids=token_ids,
        text="",
        ttft_s=0.1,
        decode_s=1.0,
        tok_s=float(repeat + 1),
        timing_source="server",
        accept_length=None,
    )


@pytest.mark.server
def test_measurement_finds_the_numbers_of_the_server(tmp_path: Path) -> None:
    behaviour = FakeBehaviour(verify_all_reduce_ms=25, plain_all_reduce_ms=7, per_position="0.75,0.5", num_layers=61)
    server = FakeServer(lambda settings: behaviour)
    asked = {"num_draft_steps": 4, "drafter": "eagle3"}
    seen: list[Sample] = []
    with server.launch(server.launch_spec(asked), tmp_path / "server.log") as running:
        result = measure(running, PROMPTS, num_tokens=200, repeats=2, requested_settings=asked, on_sample=seen.append)
    plain, speculative = result.arms["plain"], result.arms["speculative"]
    assert (result.requested_settings, result.settings) == (asked, asked)
    assert plain.cycle_ms == pytest.approx(3 + 7 + 0.2 + 0.2 + 0.4)
    assert plain.tok_s == pytest.approx(1e3 / plain.cycle_ms)
    assert (plain.accept_length, plain.all_reduces_per_verify) == (1.0, None)
    assert speculative.anatomy_ms["verify_all_reduce"] == pytest.approx(25)
    assert speculative.cycle_ms == pytest.approx(3 + 4 + 25 + 0.2 + 1 + 0.2 + 0.4)
    assert speculative.accept_length == pytest.approx(2.25, abs=0.02)
    # Positions 3 and 4 of four draft steps were never correct; the page does not list them.
    assert speculative.correct_drafts_per_position == pytest.approx((0.75, 0.5, 0, 0), abs=0.02)
    assert speculative.num_proposed_drafts == 2
    assert speculative.all_reduces_per_verify == 123
    # The last pass of a request is cut at num_tokens, so the rate lies a little below accept_length / cycle.
    assert speculative.tok_s == pytest.approx(1e3 * speculative.accept_length / speculative.cycle_ms, rel=0.02)
    assert {cost.phase: cost.ms_per_pass for cost in speculative.collectives} == {"verify": pytest.approx(25)}
    assert len(seen) == 12
    path = tmp_path / "measurement.json"
    path.write_text(result.model_dump_json())
    assert ServerMeasurement.model_validate_json(path.read_text()) == result


@pytest.mark.server
def test_an_arm_that_the_launch_does_not_serve_is_refused(tmp_path: Path) -> None:
    server = FakeServer(lambda settings: FakeBehaviour(per_position=""))
    with server.launch(server.launch_spec({}), tmp_path / "server.log") as running:
        with pytest.raises(ConfigError, match="this launch serves plain, got arm 'speculative'"):
            measure(running, PROMPTS, num_tokens=8, repeats=1)
        assert list(measure(running, PROMPTS, num_tokens=8, repeats=1, arms=("plain",)).arms) == ["plain"]


def test_anatomy_is_of_the_batch_that_took_most_time() -> None:
    page = parse_metrics(
        'fastverify:cycles_total{kind="plain",batch="1"} 10\n'
        'fastverify:cycles_total{kind="plain",batch="4"} 5\n'
        'fastverify:cycle_phase_seconds_total{kind="plain",batch="1",phase="host"} 0.1\n'
        'fastverify:cycle_phase_seconds_total{kind="plain",batch="4",phase="host"} 0.2\n'
    )
    arm = measure_arm("plain", [sample("a", 0, 1, 2)], page)
    assert (arm.batch, arm.num_cycles, arm.cycle_ms) == (4, 15, pytest.approx(40))


def test_a_server_without_cycle_counters_leaves_them_unknown() -> None:
    arm = measure_arm("speculative", [sample("a", 0, 1, 2)], parse_metrics(""))
    assert (arm.cycle_ms, arm.anatomy_ms, arm.collectives, arm.all_reduces_per_verify) == (None, {}, (), None)


def test_outputs_are_of_the_first_repeat_and_changes_between_repeats_are_named() -> None:
    samples = [sample("a", 1, 5, 6), sample("a", 0, 5, 7), sample("b", 0, 1), sample("b", 1, 1)]
    assert first_outputs(samples) == {"a": (5, 7), "b": (1,)}
    assert unstable_prompts(samples) == ("a",)
