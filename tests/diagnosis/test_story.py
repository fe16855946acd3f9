"""The story that began the project, to its printed digits."""

from pathlib import Path

import pytest

from fastverify.diagnosis.answer import Answer, answer_report
from fastverify.diagnosis.facts_file import evidence_of_facts, parse_facts

FACTS = Path(__file__).parent.parent / "data" / "story_facts.yaml"


@pytest.fixture(scope="module")
def answer() -> Answer:
    text = FACTS.read_text()
    facts = parse_facts(text, "story")
    return answer_report(facts, evidence_of_facts(facts, "story", text))


def test_verdict(answer: Answer) -> None:
    assert round(answer.cycle_ms, 1) == 33.3
    assert round(answer.plain_ms, 1) == 12.2
    assert round(answer.break_even_accept_length, 2) == 2.73
    assert answer.speedup == pytest.approx(60 / 82)
    assert answer.missing_ms == pytest.approx(2.0 / 0.060 - 2 * 1 / 0.082)
    assert answer.headline.startswith(
        "Speculation loses 27 %: acceptance length 2.00, needs 2.73. 25.0 ms of the 33.3 ms"
    )


def test_all_reduce(answer: Answer) -> None:
    chain = answer.arms[0]
    assert round(chain.all_reduce_us) == 205
    assert round(chain.all_reduce_share_of_verify, 2) == 0.83
    assert round(chain.outside_verify_ms, 1) == 3.3
    assert (chain.plain_message_bytes, chain.verify_message_bytes) == (14336, 57344)


def test_shorter_verify_pass_keeps_what_is_outside_it(answer: Answer) -> None:
    projection = answer.projection
    assert round(projection.cycle_ms, 1) == 15.3
    assert projection.tok_s == pytest.approx(131, abs=0.6)
    assert "not 167" in projection.text


def test_plain_decoding_gains_too(answer: Answer) -> None:
    projection = answer.projection
    low, high = projection.plain_tok_s
    assert 82 < low < high
    assert projection.speedup == (pytest.approx(projection.tok_s / high), pytest.approx(projection.tok_s / low))


def test_findings_name_the_cause_with_lines(answer: Answer) -> None:
    by_rule = {finding.rule: finding for finding in answer.findings}
    assert {"R-BE", "R-ARSHARE", "R-ARFLOOR", "R-ARGATE", "R-ARSIZE"} <= set(by_rule)
    assert "R-FIX" not in by_rule
    floor = by_rule["R-ARFLOOR"]
    assert floor.numbers["ratio"] == pytest.approx(205 / 31.3, rel=0.01)
    lines = {piece.name: piece.line for piece in floor.evidence}
    assert "verify_all_reduce_ms: 25" in FACTS.read_text().splitlines()[lines["verify_all_reduce_ms"] - 1]


def test_tree_of_the_second_arm_is_judged_from_its_rates(answer: Answer) -> None:
    (finding,) = [f for f in answer.findings if f.rule == "R-BE" and f.arms == ("ngram tree",)]
    assert finding.numbers["speedup"] == pytest.approx(0.5)


def test_tree_algorithm_fails_in_capture_for_a_reason_that_is_named() -> None:
    facts = parse_facts(FACTS.read_text() + "launch: {env: {NCCL_ALGO: Tree}}\n", "story")
    (finding,) = [f for f in answer_report(facts).findings if f.rule == "R-VER"]
    assert "broadcast" in finding.title
    assert "capture" in finding.title
    assert "NCCL_ALGO=allreduce:tree" in finding.next
    assert "ring,tree;allreduce:tree" in finding.next
