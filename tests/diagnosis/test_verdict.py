import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.diagnosis.cycle_cost import CycleCost, cost_from_tok_s
from fastverify.diagnosis.verdict import judge
from fastverify.errors import ConfigError


def story() -> tuple[CycleCost, CycleCost]:
    """Kimi-K2.5 on 8 PCIe GPUs: 82 tok/s plain, 60 tok/s with drafts; 122 all-reduces take 25 of the verify's 30 ms."""
    plain = cost_from_tok_s("plain", 82.0)
    phases_ms = {"verify_compute": 5.0, "verify_all_reduce": 25.0}
    return plain, cost_from_tok_s("speculative", 60.0, accept_length=2.0, phases_ms=phases_ms)


def test_the_story_is_told_in_one_line() -> None:
    verdict = judge(*story(), all_reduces_per_verify=122)
    assert verdict.cycle_ms == pytest.approx(33.3, abs=0.05)
    assert verdict.plain_ms == pytest.approx(12.2, abs=0.05)
    assert verdict.break_even_accept_length == pytest.approx(2.73, abs=0.005)
    assert verdict.all_reduce_us == pytest.approx(205, abs=0.5)
    assert verdict.verify_ms == pytest.approx(30)
    assert verdict.headline == (
        "Speculation loses 27 %: acceptance length 2.00, needs 2.73. 25.0 ms of the 33.3 ms cycle is all-reduce."
    )


def test_outside_of_verify_becomes_a_gap_and_limits_the_projection() -> None:
    _, speculative = story()
    assert speculative.phases_ms["gap"] == pytest.approx(3.3, abs=0.05)
    projected_tok_s = 1000 * speculative.accept_length / (12 + speculative.phases_ms["gap"])
    assert projected_tok_s == pytest.approx(131, abs=1), "the story claimed 167 by forgetting what is outside verify"


def test_win_and_break_even_are_worded() -> None:
    plain = cost_from_tok_s("plain", 100.0)
    win = judge(plain, cost_from_tok_s("speculative", 141.0, accept_length=3.02, phases_ms={"draft": 15.0}))
    assert win.headline.startswith("Speculation wins 41 %: acceptance length 3.02, needs 2.14. 15.0 ms of the 21.4 ms")
    even = judge(plain, cost_from_tok_s("speculative", 100.2, accept_length=2.0))
    assert even.headline.startswith("Speculation breaks even: ")
    assert even.verify_ms is None
    assert even.all_reduce_us is None


@given(
    plain_tok_s=st.floats(0.1, 1e4),
    speculative_tok_s=st.floats(0.1, 1e4),
    accept_length=st.floats(1, 16),
    phases=st.dictionaries(st.sampled_from(["draft", "verify_compute", "host"]), st.floats(0, 100)),
)
def test_identities(plain_tok_s: float, speculative_tok_s: float, accept_length: float, phases: dict) -> None:
    plain = cost_from_tok_s("plain", plain_tok_s)
    speculative = cost_from_tok_s("speculative", speculative_tok_s, accept_length=accept_length, phases_ms=phases)
    verdict = judge(plain, speculative)
    assert verdict.speedup == pytest.approx(speculative_tok_s / plain_tok_s)
    assert verdict.break_even_accept_length == pytest.approx(verdict.cycle_ms / verdict.plain_ms)
    assert verdict.cycle_ms == pytest.approx(accept_length / speculative_tok_s * 1000)
    assert (verdict.speedup > 1) == (accept_length > verdict.break_even_accept_length) or verdict.speedup == 1
    assert sum(speculative.phases_ms.values()) == pytest.approx(verdict.cycle_ms), "phases add up to the cycle"


@pytest.mark.parametrize(("tok_s", "accept_length"), [(0.0, 1.0), (50.0, 0.9)])
def test_impossible_numbers_are_refused(tok_s: float, accept_length: float) -> None:
    with pytest.raises(ConfigError, match=r"above 0 and an acceptance length at least 1, got .*plain arm"):
        cost_from_tok_s("plain", tok_s, accept_length=accept_length)
