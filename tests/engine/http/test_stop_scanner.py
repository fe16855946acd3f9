from hypothesis import given
from hypothesis import strategies as st

from fastverify.engine.http.stop_scanner import StopScanner

SHORT = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(pieces=st.lists(SHORT, max_size=6), stops=STOPS)
def test_pieces_in_any_cut_end_before_the_first_stop_text(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(tuple(stops))
    shown = "".join(scanner.feed(piece) for piece in pieces) + scanner.finish()
    text = "".join(pieces)
    # The stop text that is complete first wins; of several complete at the same piece, the one that begins first.
    found = [text.find(stop) for stop in stops if stop in text]
    assert scanner.found == bool(found)
    assert text.startswith(shown)
    if not found:
        assert shown == text
    elif len(stops) == 1:
        assert shown == text[: found[0]]
    else:
        assert not any(stop in shown for stop in stops)


def test_text_that_cannot_begin_a_stop_text_is_not_held_back() -> None:
    scanner = StopScanner(("\nQ:",))
    assert [scanner.feed(piece) for piece in ("one\n", "two", "\nQ", ":", "more")] == ["one", "\ntwo", "", "", ""]
