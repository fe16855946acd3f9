import pytest

from fastverify.tuning.report_types import Decomposition, Report
from fastverify.tuning.report_words import credit_sentences, factor
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


def sentences(before: SideNumbers, after: SideNumbers) -> str:
    shared = after.plain_tok_s / before.plain_tok_s
    total = after.speculative_tok_s / before.speculative_tok_s
    parts = Decomposition(
        total=total,
        shared=shared,
        speculation=total / shared,
        plain_saved_ms=22.2,
        plain_saved_all_reduce_ms=21.4,
    )
    report = Report.model_construct(decomposition=parts, before=before, after=after)
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


@pytest.mark.parametrize(("value", "text"), [(1.0, "1.00x"), (5.019, "5.02x"), (12.34, "12.3x"), (9.96, "10.0x")])
def test_factor_has_three_figures(value: float, text: str) -> None:
    assert factor(value) == text
