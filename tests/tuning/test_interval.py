import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastverify.errors import ConfigError
from fastverify.tuning.interval import Interval


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    low, mid, high = sorted(draw(st.floats(0.01, 1e4)) for _ in range(3))
    return Interval(low=low, mid=mid, high=high)


@given(a=intervals(), b=intervals(), fractions=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_results_hold_every_combination(a: Interval, b: Interval, fractions: tuple) -> None:
    x = a.low + (a.high - a.low) * fractions[0]
    y = b.low + (b.high - b.low) * fractions[1]
    for result, exact in ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y)):
        slack = 1e-9 * max(abs(exact), a.high, b.high)
        assert result.low <= exact + slack
        assert exact <= result.high + slack


def test_ends_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="low <= mid <= high"):
        Interval(low=2, mid=1, high=3)


def test_a_negative_factor_swaps_the_ends() -> None:
    assert Interval(low=1, mid=2, high=4).scaled(-1) == Interval(low=-4, mid=-2, high=-1)
    assert not Interval(low=1, mid=2, high=4).contains(5)
