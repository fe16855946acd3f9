import pytest

from fastverify.diagnosis.cycle_cost import decode_rate
from fastverify.servers.measurement import Sample


def sample(prompt_id: str, repeat: int, tok_s: float) -> Sample:
    return Sample(
        arm="plain", prompt_id=prompt_id, repeat=repeat, num_tokens=64, token_ids=(), text="", ttft_s=0.1,
        decode_s=63 / tok_s, tok_s=tok_s, timing_source="server", accept_length=None,
    )  # fmt: skip


def test_all_tokens_over_all_time_with_the_median_repeat(measurement) -> None:
    samples = [sample("a", 0, 100.0), sample("a", 1, 100.0), sample("a", 2, 5.0), sample("b", 0, 50.0)]
    arm = measurement.arms["plain"].model_copy(update={"samples": tuple(samples)})
    assert decode_rate(arm) == pytest.approx(2 / (1 / 100 + 1 / 50)), "the disturbed repeat does not count"


def test_without_samples_the_arms_own_median(measurement) -> None:
    assert decode_rate(measurement.arms["plain"]) == measurement.arms["plain"].tok_s
