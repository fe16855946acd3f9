import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.tuning.report_svg import Scale, Svg, log_ticks, round_ticks, spread


def test_text_of_a_user_cannot_leave_its_element() -> None:
    svg = Svg(10, 10, 'a "label" & <more>')
    svg.text(1, 2, "</text><script>alert(1)</script>")
    svg.rect(0, 0, 1, 1, "grid", tip="a < b & c")
    root = ElementTree.fromstring(svg.render())
    assert [child.tag for child in root] == ["text", "rect"]
    assert root[0].text == "</text><script>alert(1)</script>"
    assert root[1][0].text == "a < b & c"


def test_scale_places_ends_and_keeps_outsiders_inside() -> None:
    scale = Scale(1.0, 100.0, 0.0, 200.0, log=True)
    assert scale(1.0) == 0.0
    assert scale(10.0) == pytest.approx(100.0)
    assert scale(1e9) == pytest.approx(200.0)
    assert Scale(3.0, 3.0, 0.0, 10.0)(3.0) == 5.0, "a single value stands in the middle"


@given(low=st.floats(0, 1e4), width=st.floats(1e-3, 1e4), count=st.integers(2, 9))
def test_ticks_are_round_inside_and_about_as_many_as_asked(low: float, width: float, count: int) -> None:
    ticks = round_ticks(low, low + width, count)
    assert len(ticks) <= count + 1
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) + 1e-9 for tick in ticks)
    steps = {round(b - a, 9) for a, b in zip(ticks, ticks[1:], strict=False)}
    for step in steps:
        digits = step / 10 ** math.floor(math.log10(step))
        assert min(abs(digits - round_digit) for round_digit in (1, 2, 5, 10)) < 1e-3


def test_log_ticks_are_powers_with_their_multiples() -> None:
    assert log_ticks(1, 100, 10, (1, 2, 5)) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1024, 70_000, 4) == [1024, 4096, 16384, 65536]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_spread_labels_do_not_touch_keep_their_order_and_stay_near(positions: list[float]) -> None:
    placed = spread(positions, 5.0)
    ordered = sorted(placed)
    assert all(b - a >= 5.0 - 1e-6 for a, b in zip(ordered, ordered[1:], strict=False))
    order = sorted(range(len(positions)), key=lambda i: (positions[i], i))
    assert order == sorted(range(len(placed)), key=lambda i: (placed[i], i))
    assert sum(placed) == pytest.approx(sum(positions), abs=1e-6), "labels move up as much as down"


def test_spread_leaves_labels_that_have_room() -> None:
    assert spread([30.0, 10.0, 20.0], 5.0) == pytest.approx([30.0, 10.0, 20.0])
