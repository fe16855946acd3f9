"""A measurement of a communication-bound server, with any part replaced."""

import pytest

from fastverify.servers.measurement import ArmMeasurement, CollectiveCost, ServerMeasurement


def make_measurement(**speculative_changes: object) -> ServerMeasurement:
    plain = ArmMeasurement(
        arm="plain",
        tok_s=40.0,
        tok_s_samples=(39.0, 40.0, 41.0),
        output_token_ids={"a": (1, 2, 3)},
        unstable_prompt_ids=(),
        batch=1,
        num_cycles=63,
        cycle_ms=24.5,
        anatomy_ms={"plain_compute": 4.0, "plain_all_reduce": 19.0, "plain_gather": 1.0, "accept": 0.1, "host": 0.4},
        accept_length=1.0,
        correct_drafts_per_position=(),
        num_proposed_drafts=0.0,
        collectives=(
            CollectiveCost(phase="plain", op="all_reduce", per_pass=17, bytes_per_pass=17 * 1280, ms_per_pass=19),
        ),
        all_reduces_per_verify=None,
        samples=(),
    )
    speculative = plain.model_copy(
        update={
            "arm": "speculative",
            "tok_s": 62.5,
            "cycle_ms": 40.0,
            "anatomy_ms": {
                "draft": 8.0,
                "verify_compute": 5.0,
                "verify_all_reduce": 20.0,
                "verify_gather": 1.0,
                "extend": 3.0,
                "accept": 0.2,
                "host": 0.8,
            },
            "accept_length": 2.5,
            "correct_drafts_per_position": (0.7, 0.5, 0.3),
            "num_proposed_drafts": 3.0,
            "collectives": (
                CollectiveCost(phase="verify", op="all_reduce", per_pass=17, bytes_per_pass=87040, ms_per_pass=20.0),
                CollectiveCost(phase="draft", op="all_reduce", per_pass=9, bytes_per_pass=11520, ms_per_pass=4.5),
                CollectiveCost(phase="extend", op="all_reduce", per_pass=3, bytes_per_pass=11520, ms_per_pass=1.5),
            ),
            "all_reduces_per_verify": 17.0,
        }
        | speculative_changes
    )
    return ServerMeasurement(
        requested_settings={},
        settings={"drafter": "eagle3", "num_draft_steps": 3, "num_proposed_drafts": 3},
        arms={"plain": plain, "speculative": speculative},
        num_tokens=64,
        repeats=3,
        concurrency=1,
        elapsed_s=10.0,
    )


@pytest.fixture
def measurement() -> ServerMeasurement:
    return make_measurement()


@pytest.fixture
def measurement_with():
    return make_measurement
