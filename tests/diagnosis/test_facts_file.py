"""The facts file: what is accepted, what is refused and how, and that no text breaks the reader."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.diagnosis.answer import answer_report
from fastverify.diagnosis.facts_file import evidence_of_facts, facts_schema, parse_facts, read_facts_file
from fastverify.diagnosis.reported import ReportedFacts
from fastverify.errors import ConfigError

STORY = (Path(__file__).parent.parent / "data" / "story_facts.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain_toks: 3", "plain_toks is not a known name"),
        ("arms: [{acceptance: 2}]", "arms.0.acceptance is not a known name"),
        ("accept_length: 0.7", "greater than or equal to 1"),
        ("plain_tok_s: 0", "greater than or equal to 0.000000001"),
        ("plain_tok_s: .nan", "finite"),
        ("plain_tok_s: 3\nplain_tok_s: 4", "plain_tok_s stands twice"),
        ("a: &x [1]\nb: *x", "aliases are not allowed"),
        ("- 1", "is a list"),
        ("{" * 3000, "neither YAML nor JSON"),
        ("!!python/object/apply:os.system ['true']", "neither YAML nor JSON"),
    ],
)
def test_refusals_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        parse_facts(text, "facts.yaml")


def test_json_is_read_as_well() -> None:
    facts = parse_facts('{"plain_tok_s": 82, "model": {"name": "x", "num_layers": 61}}', "facts.json")
    assert (facts.plain_tok_s, facts.model.num_layers) == (82, 61)


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.yaml", "binary"):
        with pytest.raises(ConfigError, match="cannot be read as text"):
            read_facts_file(tmp_path / name)


def test_numbers_that_contradict_each_other_are_refused() -> None:
    text = "plain_tok_s: 82\nspeculative_tok_s: 60\naccept_length: 2\nverify_ms: 40"
    with pytest.raises(ConfigError, match="phases of a cycle fit into it"):
        answer_report(parse_facts(text, "facts.yaml"))


def test_schema_has_every_name_and_forbids_others() -> None:
    schema = facts_schema()
    assert set(schema["properties"]) == set(ReportedFacts.model_fields)
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_evidence_has_the_line_of_its_arm() -> None:
    lines = STORY.splitlines()
    pieces = evidence_of_facts(parse_facts(STORY, "story"), "story", STORY)
    methods = [lines[piece.line - 1] for piece in pieces if piece.name == "method"]
    assert ["eagle3" in methods[0], "ngram" in methods[1]] == [True, True]


def test_top_with_its_own_rate_is_an_arm_beside_the_others() -> None:
    text = "plain_tok_s: 80\nspeculative_tok_s: 100\naccept_length: 2\ntp: 4\narms: [{label: b, speculative_tok_s: 90}]"
    first, second = answer_report(parse_facts(text, "f")).arms
    assert (first.speedup, second.speedup) == (1.25, 1.125)
    assert (first.accept_length, second.accept_length) == (2, None)


@pytest.mark.parametrize("rates", ["total", "per_request"])
def test_rates_of_a_batch(rates: str) -> None:
    factor = 8 if rates == "total" else 1
    text = f"rates: {rates}\nbatch: 8\naccept_length: 2\nplain_tok_s: {50 * factor}\nspeculative_tok_s: {80 * factor}"
    answer = answer_report(parse_facts(text, "f"))
    assert (answer.cycle_ms, answer.plain_ms) == (pytest.approx(25), pytest.approx(20))


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_facts(text, "fuzz"), ReportedFacts)


@given(st.integers(0, len(STORY)))
def test_truncated_files_are_read_or_refused(length: int) -> None:
    with contextlib.suppress(ConfigError):
        assert answer_report(parse_facts(STORY[:length], "cut")).headline
