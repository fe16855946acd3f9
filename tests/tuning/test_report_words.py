import pytest

from fastverify.tuning.report_types import Decomposition, Report
from fastverify.tuning.report_words import credit_sentences, factor, noise_sentence
from fastverify.tuning.result import SideNumbers


def side(plain_tok_s: float, speculative_tok_s: float) -> SideNumbers:
    return SideNumbers(
        accept_length=2.9,
        plain_tok_s=plain_tok_s,
        speculative_tok_s=speculative_tok_s,
        speedup=speculative_tok_s / plain_tok_s,
        break_even_accept_length=2.9 * plain_tok_s / speculative_tok_s,
        verify_ms=30.0,
        verify_all_reduce_ms=25.0,
        all_reduces_per_verify=17.0,
    )


def sentences(before: SideNumbers, after: SideNumbers, noise: float = 0.02) -> str:
    shared = after.plain_tok_s / before.plain_tok_s
    total = after.speculative_tok_s / before.speculative_tok_s
    parts = Decomposition(
        total=total,
        shared=shared,
        speculation=total / shared,
        plain_saved_ms=22.2,
        plain_saved_all_reduce_ms=21.4,
    )
    report = Report.model_construct(decomposition=parts, before=before, after=after, noise=noise)
    return " ".join(credit_sentences(report))


def test_gain_of_both_arms_is_not_speculations() -> None:
    text = sentences(side(36, 60), side(180, 390))
    assert "Plain decoding runs 5.00x as fast" in text
    assert "21.4 of the 22.2 ms" in text
    assert "Speculation's own part is 1.30x" in text
    assert "from 1.67x to 2.17x" in text
    assert "5.00x for both arms times 1.30x makes 6.50x" in text


def test_speculation_that_fell_behind_is_said_to_have() -> None:
    text = sentences(side(36, 66), side(180, 260))
    assert "Speculation gained less than plain decoding" in text
    assert "from 1.83x to 1.44x" in text
    assert "own part" not in text


def test_no_own_gain_is_said_plainly() -> None:
    assert "Speculation itself gained nothing" in sentences(side(36, 66), side(180, 331))


def test_changes_within_the_noise_are_no_changes() -> None:
    text = sentences(side(34.4, 15.1), side(23.0, 26.9), noise=0.375)
    assert "Plain decoding did not change beyond the noise (0.67x, noise 38 %)" in text
    assert "no merit" not in text
    assert "Speculation's own part is 2.66x" in text
    text = sentences(side(36, 60), side(180, 370), noise=0.375)
    assert "Speculation itself gained nothing beyond the noise" in text


def test_plain_decoding_that_got_slower_is_said_to_have() -> None:
    text = sentences(side(100, 90), side(80, 120))
    assert "slow plain decoding down to 0.80x of its rate" in text
    assert "no merit" not in text


@pytest.mark.parametrize(("noise", "warned"), [(None, False), (0.02, False), (0.375, True)])
def test_restless_machine_is_told(noise: float | None, warned: bool) -> None:
    text = noise_sentence(Report.model_construct(noise=noise))
    assert ("restless" in text) is warned


@pytest.mark.parametrize(("value", "text"), [(1.0, "1.00x"), (5.019, "5.02x"), (12.34, "12.3x"), (9.96, "10.0x")])
def test_factor_has_three_figures(value: float, text: str) -> None:
    assert factor(value) == text
